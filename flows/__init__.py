"""Merganser on top of the engine: command line, project hooks, schedules, audit of MLflow."""

import dvcfleet  # noqa: F401  # sets how DVC, Prefect and MLflow behave, before they are imported
