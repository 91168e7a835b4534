"""Run the stages of any DVC repository in parallel, as a Prefect flow."""

import os

from dvcfleet.process_settings import set_own

__version__ = "0.1.0"

# Set before DVC and Prefect are imported: no usage reports, no check for newer versions, Prefect's logs go to its
# server and not to the terminal, and calls to a server that does not answer time out soon.
for _name, _value in {
    "DVC_NO_ANALYTICS": "1",
    "DO_NOT_TRACK": "true",  # the only spelling that MLflow also accepts
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",
    "PREFECT_CLIENT_MAX_RETRIES": "3",
}.items():
    if _name not in os.environ:
        set_own(_name, _value)
