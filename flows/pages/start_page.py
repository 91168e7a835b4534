"""The start page of `merganser ui`: the project, its last run with its result, and links to the other pages."""

import os
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import Any

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from dvcfleet.record.last_run import last_run
from dvcfleet.repository import STATE_FOLDER
from dvcfleet.web_guard import Guard
from merganser.errors import InputError
from merganser.flows.steps.answer import as_card, best_by_budget, read_table
from merganser.limits import read_yaml
from merganser.report.formats import sentence
from merganser.report.templates import open_templates
from merganser.tasks.identity import experiment_names
from merganser.tasks.tracking import STORE

# Below the root, what the page links to: the report, the files that its numbers link to, the docs if they are built.
PLOT = "plots/memory.svg"  # of the report
TRAINING = "workflowType=machine_learning"  # otherwise MLflow's page is about language models' traces
SERVED = {"report": "report", "so-far": ".dvcfleet/so-far", "data/metrics": "data/metrics", "docs": "build/site"}


def start_page(root: Path, services: Mapping[str, str]) -> Starlette:
    """Return the web application of a repository; `services`: addresses of the other pages by name."""
    page, alone = _environment().get_template("start.html.j2"), Lock()

    def show(_: Request) -> HTMLResponse:
        shown = {**services, "MLflow": f"{services['MLflow']}/#/experiments{_own_runs(root)}?{TRAINING}"}
        return HTMLResponse(page.render(**describe_repository(root), services=shown))

    def index(request: Request) -> RedirectResponse:
        return RedirectResponse(f"{request.url.path.rstrip('/')}/index.html")

    def history(_: Request) -> HTMLResponse:
        from merganser.flows.evidence.runs.history import read_history  # imports torch
        from merganser.flows.pages.history_page import history_page

        with alone:  # DVC opens a repository by changing the process's folder
            points = read_history(root)
        return HTMLResponse(history_page(points))

    routes: list[BaseRoute] = [
        Route("/", show),
        Route("/history", history),
        Route("/favicon.ico", lambda _: Response(status_code=204)),
    ]
    for path, folder in SERVED.items():
        routes += [Route(f"/{path}/", index), Mount(f"/{path}", _Folder(directory=root / folder, check_dir=False))]
    return Starlette(routes=routes, middleware=[Middleware(Guard)])


def _own_runs(root: Path) -> str:
    """Return the address of the comparison's runs on MLflow's page; empty if not known."""
    if "MLFLOW_TRACKING_URI" not in os.environ and (root / STORE).is_file():
        with suppress(sqlite3.Error), closing(sqlite3.connect(f"{(root / STORE).as_uri()}?mode=ro", uri=True)) as store:
            for name in experiment_names(root):
                for (number,) in store.execute("SELECT experiment_id FROM experiments WHERE name = ?", (name,)):
                    return f"/{number}/runs"
    return ""


class _Folder(StaticFiles):
    """Serve the files of a folder; if it does not exist, no file is found."""

    async def check_config(self) -> None:
        """Accept a missing folder: every request checks again."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        """Find a file; an impossible file name is not found."""
        try:
            return super().lookup_path(path)
        except ValueError:
            return "", None


def describe_repository(root: Path) -> dict[str, Any]:
    """Return the page's content: the repository's name, its comparison, its last run, and links."""
    return {
        "name": root.name,
        "comparison": _comparison(root / "params.yaml"),
        "run": last_run(root / STATE_FOLDER),
        "answer": _answer(root),
        "so_far": (root / ".dvcfleet/so-far/index.html").is_file(),
        "has_report": (root / "report/index.html").is_file(),
        "has_plot": (root / "report" / PLOT).is_file(),
        "has_docs": (root / "build/site/index.html").is_file(),
        "is_clone": (root / "mkdocs.yml").is_file(),
    }


def _comparison(path: Path) -> str:
    """Return the number of tasks and entries in a params.yaml; empty for a repository without a comparison."""
    try:
        params = read_yaml(path)
        tasks, entries = len(params["tasks"]), len(params["methods"])
    except (InputError, LookupError, TypeError):
        return ""
    return f"{_counted(tasks, 'task', 'tasks')}, {_counted(entries, 'entry', 'entries')}"


def _answer(root: Path) -> list[dict[str, Any]]:
    """Return a card for each memory budget, with the report's best entries; empty without a report."""
    try:
        data = {row["entry"]: row["data"] for row in read_table(root, "results.csv")}
        return [
            {
                "budget": budget.title,
                "alone": as_card(budget.alone, data) if budget.alone else None,
                "none": "No further entry." if budget.follows else "No entry.",
                "with_data": as_card(budget.with_data, data) if budget.with_data else None,
            }
            for budget in best_by_budget(read_table(root, "choices.csv"))
        ]
    except (InputError, LookupError, TypeError, ValueError):  # none, or a damaged one
        return []


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _environment() -> Environment:
    environment = open_templates("merganser.flows.pages")
    environment.filters |= {
        "sentence": sentence,
        "local": lambda moment: f"{moment.astimezone():%Y-%m-%d %H:%M}",
        "results": lambda counts: [f"{count} {result}" for result, count in counts.items()],
    }
    return environment
