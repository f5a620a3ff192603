"""Code after a published convolution, whose sizes are fixed."""
# ruff: noqa: F821

_init = ModelNew.__init__


def _of_these_sizes(self, *sizes):
    assert sizes == (3, 96, 11, 4, 2), f"made for another convolution: {sizes}"
    _init(self)


ModelNew.__init__ = _of_these_sizes
