"""The part that plans of factorizations have in common if no panel moves between the ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pblas.plans.factorization import FactorizationPlan, Panel


@dataclass(frozen=True, slots=True)
class FactorizationWithoutPanels(FactorizationPlan):
    """A = Q R by other messages than panels: triangles, Gram matrices or single columns, for which a rank waits."""

    operation: ClassVar[str] = "qr_factor"

    @property
    def steps(self) -> list[Panel]:
        """None: no panel moves."""
        return []

    @property
    def overlaps_messages(self) -> bool:
        """False: a rank waits for the messages of the others."""
        return False

    def rows(self, panel: Panel) -> tuple[int, int]:
        """No rows: no panel moves."""
        return panel.start, panel.start

    def _shared_projection(self) -> float:
        return 0.0

    @property
    def _trapezoid(self) -> None:
        return None

    @property
    def _equation(self) -> str:
        return "A = Q R"
