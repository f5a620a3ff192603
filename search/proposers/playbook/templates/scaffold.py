"""The parts of every rendered kernel around its device code: comment lines, imports, `ModelNew`.

A kernel's second line is `# playbook: {"op": ..., "language": ..., "knobs": {...}}`, from which the playbook
reads the state of a seed (`read_stamp`).
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence

from search.proposers.playbook.move import Knob, Knobs
from search.proposers.playbook.workload import Workload

STAMP = "# playbook: "

BUILD = '''
def build(source: str, flags: str) -> ctypes.CDLL:
    """Loads the compiled source; compiles it first if no earlier call did."""
    name = hashlib.sha256(f"{source}\\n{flags}".encode()).hexdigest()[:16]
    library = os.path.join(tempfile.gettempdir(), f"{name}.so")
    if not os.path.exists(library):
        scratch = f"{library}.{os.getpid()}"
        command = [os.environ.get("CXX", "g++"), "-x", "c++", "-", *flags.split(), "-o", scratch]
        compiler = subprocess.run(command, input=source, capture_output=True, text=True)
        if compiler.returncode:
            raise RuntimeError(compiler.stderr)
        os.replace(scratch, library)
    return ctypes.CDLL(library)
'''


def stamp(op: str, language: str, knobs: Knobs) -> str:
    """The comment line that records a kernel's template and knobs."""
    return STAMP + json.dumps({"op": op, "language": language, "knobs": dict(sorted(knobs.items()))})


def read_stamp(source: str) -> tuple[str, str, dict[str, Knob]] | None:
    """Operation, language and knobs of a rendered kernel; None for any other kernel."""
    for line in source.splitlines():
        if line.startswith(STAMP):
            try:
                found = json.loads(line[len(STAMP) :])
                return str(found["op"]), str(found["language"]), dict(found["knobs"])
            except (ValueError, KeyError, TypeError):
                return None
    return None


def without_stamp(source: str) -> str:
    """The kernel without its comment line: equal for knobs that make no difference."""
    return "\n".join(line for line in source.splitlines() if not line.startswith(STAMP))


def kernel_file(
    *,
    summary: str,
    language: str,
    workload: Workload,
    knobs: Knobs,
    imports: Sequence[str],
    code: str,
    inputs: Sequence[str],
    forward: str,
) -> str:
    """A whole kernel file.

    `code` stands between the imports and `ModelNew`. `inputs` are the arguments of `forward` after `self`,
    and `forward` is its body, starting at column 0. If the workload has lines around the kernel, both are for
    the method `kernel` instead.
    """
    header = workload.header.splitlines()
    future = [line for line in header if line.startswith("from __future__")]
    rest = [line for line in header if line not in future and line != "import torch"]
    plain = sorted(line for line in imports if line != "import torch")
    top = "\n".join([f"# {summary}", stamp(workload.op, language, knobs), *future, *plain])
    constructor = [textwrap.indent(workload.constructor, "    "), ""] if workload.constructor else []
    methods = [("forward", inputs, forward)]
    if workload.around is not None:
        around = workload.around
        methods = [("forward", around.arguments, "\n".join(around.lines)), ("kernel", inputs, forward)]
    several = [_method(*each) for each in methods]
    model = ["class ModelNew(torch.nn.Module):", *constructor, "\n\n".join(several)]
    middle = "\n".join(["import torch", *rest])
    return f"{top}\n\n{middle}\n\n\n{code.strip()}\n\n\n" + "\n".join(model) + "\n"


def _method(name: str, arguments: Sequence[str], body: str) -> str:
    lines = textwrap.indent(body.strip("\n"), "        ")
    return f"    def {name}({', '.join(['self', *arguments])}):\n{lines}"


def cpp_kernel(
    *,
    summary: str,
    workload: Workload,
    knobs: Knobs,
    includes: Sequence[str],
    sizes: Mapping[str, int],
    constants: bool,
    source: str,
    flags: str,
    shapes: Mapping[str, Sequence[int]],
    weights: Sequence[str],
    output: str,
) -> str:
    """A kernel in C++, called through ctypes. `source` defines `void run(inputs..., weights..., out,
    threads)`.

    `sizes` are the integers that the source uses by name, as compile-time `constants` or set at load time.
    `shapes` are the shapes of the inputs of `forward` (empty: any), `weights` the layer's parameters that the
    function takes, and `output` is the Python expression that allocates the result.
    """
    listed = [f"#include <{name}>" for name in includes]
    listed += ["", _constants(sizes) if constants else _variables(sizes), ""]
    text = "\n".join(listed) + "\n" + source.strip()
    code = f'{BUILD}\n\nSOURCE = r"""\n{text.strip()}\n"""\nLIBRARY = build(SOURCE, "{flags}")\n'
    if not constants:
        values = ", ".join(str(size) for size in sizes.values())
        code += f"LIBRARY.configure((ctypes.c_int * {len(sizes)})({values}))\n"
    lines = []
    for name, shape in shapes.items():
        if shape:
            wanted = f"{tuple(shape)}"
            lines.append(f"if {name}.shape != {wanted}:")
            lines.append(f'    raise ValueError(f"{name} is {{tuple({name}.shape)}}, not {wanted}")')
    tensors = [*shapes, *weights]
    contiguous = [f"{name}.contiguous()" for name in shapes]
    contiguous += [f"self.{workload.module}.{name}.contiguous()" for name in weights]
    lines.append(f"{', '.join(tensors)} = {', '.join(contiguous)}")
    lines.append(f"out = {output}")
    lines.append(f"tensors = ({', '.join([*tensors, 'out'])})")
    lines.append("pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors]")
    lines.append("LIBRARY.run(*pointers, torch.get_num_threads())")
    lines.append("return out")
    return kernel_file(
        summary=summary,
        language="cpp",
        workload=workload,
        knobs=knobs,
        imports=[f"import {name}" for name in ("ctypes", "hashlib", "os", "subprocess", "tempfile")],
        code=code,
        inputs=list(shapes),
        forward="\n".join(lines),
    )


def _constants(sizes: Mapping[str, int]) -> str:
    return _filled("constexpr int ", [f"{name} = {size}" for name, size in sizes.items()], ", ") + ";"


def _variables(sizes: Mapping[str, int]) -> str:
    declared = _filled("static int ", list(sizes), ", ") + ";"
    assigned = _filled("    ", [f"{name} = s[{place}]" for place, name in enumerate(sizes)], "; ") + ";"
    return f'{declared}\n\nextern "C" void configure(const int* s) {{\n{assigned}\n}}'


def _filled(start: str, items: Sequence[str], separator: str) -> str:
    """The items in lines of at most 100 columns, broken between items only."""
    lines = [start + items[0]]
    for item in items[1:]:
        if len(lines[-1]) + len(separator) + len(item) < 100:
            lines[-1] += separator + item
        else:
            lines[-1] += separator.rstrip()
            lines.append("    " + item)
    return "\n".join(lines)
