"""Libraries without the shipped kernels, for tests that count what is in them."""

import pytest

from kernel_library.catalogue.library import FolderLibrary


@pytest.fixture
def no_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = FolderLibrary.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "seeds", None)
