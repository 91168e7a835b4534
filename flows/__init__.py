"""Merganser on top of the engine: the flow of a comparison, its schedules, commands and evidence."""

import dvcfleet  # noqa: F401  # sets how DVC, Prefect and MLflow behave, before they are imported
