"""`python -m flowfabric`."""

from __future__ import annotations

import sys

from flowfabric.cli.main import main

sys.exit(main())
