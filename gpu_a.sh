set -x
mkdir -p /tmp/gs && tar xJf .gpu_site/site.tar.xz -C /tmp/gs; export PYTHONPATH=/tmp/gs:/tmp/gs/site
rm -rf /tmp/new /tmp/oldt; cp -r .old /tmp/oldt; mkdir /tmp/new; cp -r evaluators benchmarks kernel_library configs pyproject.toml search /tmp/new/
for d in /tmp/oldt /tmp/new; do sed -i 's/from evaluators.scheduler.ray_host import RayHost/from evaluators.scheduler.local_host import LocalHost as RayHost/' $d/benchmarks/throughput.py; done
KB=$PWD/.kb
for d in oldt new; do (cd /tmp/$d && XDG_CACHE_HOME=/tmp/c_$d timeout 170 python3 benchmarks/throughput.py kernelbench=$KB only=ours > $OUT/$d.txt 2>&1; tail -12 $OUT/$d.txt); done
IDEATREE_CATALOGUE=all timeout 330 python3 -m pytest -p no:cacheprovider --tb=line -n 0 $(cat gpu_ids_a.txt) 2>&1 | tail -40 > $OUT/cat.txt; tail -30 $OUT/cat.txt
