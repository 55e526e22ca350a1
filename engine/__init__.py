"""What the backward does: scheduling policies and the two engines. Needs `inspector` and torch alone."""
