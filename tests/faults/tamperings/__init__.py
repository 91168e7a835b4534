"""A hundred ways to tamper with a finished comparison: each a small function that runs in the comparison's folder."""

from tests.faults.tamperings import ends, files, ledger, mlflow, together
from tests.faults.tamperings.edits import TAMPERINGS

__all__ = ["TAMPERINGS", "ends", "files", "ledger", "mlflow", "together"]
