"""`python -m ideatree …` is `ideatree …`."""

import sys

from ideatree.commands import main

sys.exit(main())
