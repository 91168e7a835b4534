"""Run the stages of any DVC repository in parallel, as a Prefect flow."""

import os

# Set before DVC and Prefect are imported: no usage reports, no look-up of newer versions, Prefect's logs go to its
# server and not to the terminal, and a server that is gone is not waited for long.
for _name, _value in {
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "true",  # the one spelling that MLflow takes too
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_CLIENT_MAX_RETRIES": "3",
}.items():
    os.environ.setdefault(_name, _value)
