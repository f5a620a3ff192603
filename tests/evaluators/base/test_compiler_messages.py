from __future__ import annotations

from evaluators.base.compiler_messages import compiler_messages, reports_error, whole_lines

GCC = """Error building extension 'scale': [1/2] c++ -MMD -I/root/include -c /tmp/x/scale/main.cpp -o main.o
FAILED: [code=1] main.o
c++ -MMD -I/root/include -c /tmp/x/scale/main.cpp -o main.o
/tmp/x/scale/main.cpp: In function ‘at::Tensor run(at::Tensor)’:
/tmp/x/scale/main.cpp:6:5: error: ‘foo’ was not declared in this scope
    6 |     foo(x);
      |     ^~~
/tmp/x/scale/main.cpp:7:9: warning: unused variable ‘y’ [-Wunused-variable]
    7 |     int y = 1;
/tmp/x/scale/main.cpp: In instantiation of ‘T twice(T) [with T = double]’:
/tmp/x/scale/main.cpp:9:21:   required from here
/tmp/x/scale/main.cpp:4:47: error: request for member ‘twice’ in ‘x’, which is of non-class type ‘double’
    4 | template <typename T> T twice(T x) { return x.twice(); }
/usr/include/c++/12/bits/move.h:77:5: note: candidate: ‘template<class _Tp> std::move’
ninja: build stopped: subcommand failed.
"""

NVCC = """Error building extension 's': [1/3] /usr/local/cuda/bin/nvcc -c /tmp/y/s/cuda.cu -o cuda.cuda.o
FAILED: cuda.cuda.o
/tmp/y/s/cuda.cu(12): error: identifier "foo" is undefined
      foo();
      ^

/tmp/y/s/cuda.cu(12): error: identifier "foo" is undefined
      foo();
      ^

/tmp/y/s/cuda.cu(20): warning #177-D: variable "i" was declared but never referenced
      int i;
          ^

1 error detected in the compilation of "/tmp/y/s/cuda.cu".
ptxas /tmp/tmpxft_0001/cuda.ptx, line 55; error   : Instruction 'wgmma.fence' not supported on .target 'sm_90'
ninja: build stopped: subcommand failed.
"""

LINKER = """Error building extension 's': [2/2] c++ main.o -shared -o s.so
/usr/bin/ld: main.o: in function `run(at::Tensor)':
main.cpp:(.text+0x1f): undefined reference to `helper(float*)'
collect2: error: ld returned 1 exit status
"""


def test_every_error_comes_first_with_its_source_line() -> None:
    assert compiler_messages(GCC, 6000).splitlines() == [
        "main.cpp: In function ‘at::Tensor run(at::Tensor)’:",
        "main.cpp:6:5: error: ‘foo’ was not declared in this scope",
        "    6 |     foo(x);",
        "      |     ^~~",
        "main.cpp: In instantiation of ‘T twice(T) [with T = double]’:",
        "main.cpp:9:21:   required from here",
        "main.cpp:4:47: error: request for member ‘twice’ in ‘x’, which is of non-class type ‘double’",
        "    4 | template <typename T> T twice(T x) { return x.twice(); }",
        "main.cpp:7:9: warning: unused variable ‘y’ [-Wunused-variable]",
        "    7 |     int y = 1;",
        "move.h:77:5: note: candidate: ‘template<class _Tp> std::move’",
    ]


def test_nvcc_and_ptxas_without_repetitions() -> None:
    found = compiler_messages(NVCC, 6000)
    assert found.count("identifier") == 1
    assert "ptxas cuda.ptx, line 55; error   : Instruction 'wgmma.fence' not supported" in found
    assert found.index("ptxas") < found.index("#177-D")
    assert "/tmp" not in found


def test_the_linkers_errors() -> None:
    assert "undefined reference to `helper(float*)'" in compiler_messages(LINKER, 6000)


def test_a_fatal_error_counts_as_one() -> None:
    fatal = "ptxas fatal   : Unresolved extern function 'f'"
    assert compiler_messages(f"a.cu(3): note: hm\n{fatal}", 6000).splitlines()[0] == fatal
    assert reports_error("ninja: error: no such file") and not reports_error("ninja: build stopped.")


def test_an_output_without_an_error() -> None:
    assert compiler_messages("all is well\nx.cpp:3:1: warning: hm", 6000) == ""


def test_no_line_is_cut() -> None:
    assert whole_lines(["1234", "5678", "9"], 10) == "1234\n5678\n[… 1 more lines]"
