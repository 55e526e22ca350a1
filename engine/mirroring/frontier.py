"""What each budget would buy: plans of one forward from the plain peak to the lowest, each with its price."""

from __future__ import annotations
