"""Makes `python -m ideatree …` equivalent to `ideatree …`."""

import sys

from ideatree.commands import main

sys.exit(main())
