"""Print the packages that the lab needs and that are missing here, one a line."""

from __future__ import annotations

import sys

from pytest_rdma.lab.requirements import main

sys.exit(main())
