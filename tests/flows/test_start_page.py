"""The start page of `merganser ui`, as a browser is sent it."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from urllib.parse import urljoin

import mlflow
import pytest
from starlette.testclient import TestClient

from merganser.flows.pages.start_page import start_page
from merganser.flows.steps.answer import report_lines
from merganser.report.formats import BUDGETS, sentence
from tests.dvcfleet.toy import Make

MLFLOW = "http://127.0.0.1:2"
SERVICES = {"Prefect": "http://127.0.0.1:1", "MLflow": MLFLOW}
HERE = "http://localhost/"


def client(root: Path) -> TestClient:
    return TestClient(start_page(root, SERVICES), base_url=HERE)


def links(html: str) -> list[str]:
    return re.findall(r'href="([^"#]+)["#]', html)


@pytest.fixture
def finished(tiny_copy: Path) -> Path:
    docs = tiny_copy / "build/site"
    docs.mkdir(parents=True)
    (docs / "index.html").write_text("<html></html>")
    return tiny_copy


def test_the_page_says_what_the_last_run_came_to(finished: Path) -> None:
    page = client(finished).get("/").text
    assert "2 tasks, 7 entries" in page
    assert re.search(r'class="state done">done</span>, stages: \d+ done', page)


def test_the_page_names_the_best_of_each_budget_as_the_report_does(finished: Path) -> None:
    page = unescape(client(finished).get("/").text)
    for budget in BUDGETS:
        assert f"<h3>{sentence(budget.title)}</h3>" in page
    told = [re.fullmatch(r"  .*  (\w+) (\S+ ± \S+), .*", line) for line in report_lines(finished)]
    named = [(found[1], found[2]) for found in told if found]
    assert named
    assert re.findall(r'<p class="value">(.*?)</p>\s*<p><a [^>]*>(\w+)</a>', page) == [(b, a) for a, b in named]
    assert client(finished).get("report/plots/memory.svg").status_code == 200
    assert 'src="report/plots/memory.svg"' in page


def test_every_link_of_the_page_and_of_the_report_leads_somewhere(finished: Path) -> None:
    browser = client(finished)
    page = browser.get("/").text
    assert f"{SERVICES['Prefect']}/runs/flow-run/" in page
    own = {link for link in links(page) if not link.startswith("http")}
    assert sorted(own) == ["docs/", "history", "report/", "report/index.html"]
    assert {browser.get(link).status_code for link in own} == {200}
    history = browser.get("history").text
    assert "<h2>Scores</h2>" in history
    assert "<polyline" not in history  # of one run there is no curve
    report = browser.get("report/")
    of_report = {
        urljoin(str(report.url), link) for link in links(report.text) if not link.startswith(("http", "data:"))
    }
    assert {browser.get(link).status_code for link in of_report} == {200}
    assert any("/data/metrics/" in link for link in of_report)


def test_mlflows_link_leads_to_the_comparisons_runs(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(root: Path) -> str:
        return next(link for link in unescape(client(root).get("/").text).split('"') if link.startswith(MLFLOW))

    client_of_store = mlflow.MlflowClient(f"sqlite:///{finished}/mlflow.db")
    (experiment,) = client_of_store.search_experiments(filter_string="name LIKE 'merganser%'")
    assert link(finished) == f"{MLFLOW}/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning"
    assert link(tmp_path) == f"{MLFLOW}/#/experiments?workflowType=machine_learning"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", MLFLOW)  # of others too: their numbers are not known here
    assert link(finished) == f"{MLFLOW}/#/experiments?workflowType=machine_learning"


def test_while_a_run_goes_on_the_page_leads_to_the_report_so_far(finished: Path) -> None:
    (finished / ".dvcfleet/so-far").mkdir()
    (finished / ".dvcfleet/so-far/index.html").write_text("Partial")
    browser = client(finished)
    assert 'href="so-far/"' in browser.get("/").text
    assert browser.get("/so-far/").text == "Partial"


def test_before_the_first_run_the_page_says_how_to_start(toy: Make) -> None:
    page = client(toy("stages: {a: {cmd: echo 1 > x, outs: [x]}}", {}).path).get("/").text
    assert "No stage has run here yet" in page
    assert [link for link in links(page) if not link.startswith("http")] == []
    assert "make site" not in page  # it is no clone


def test_a_name_or_a_page_of_another_site_is_refused(tmp_path: Path) -> None:
    for headers in ({"host": "elsewhere.example"}, {"origin": "http://elsewhere.example"}):
        assert client(tmp_path).get("/", headers=headers).status_code == 403


def test_forty_first_requests_of_the_history_at_once_are_answered(finished: Path) -> None:
    (finished / ".dvcfleet/history.jsonl").unlink(missing_ok=True)
    browser = client(finished)
    with ThreadPoolExecutor(40) as pool:
        codes = Counter(pool.map(lambda _: browser.get("/history").status_code, range(40)))
    assert codes == {200: 40}


def test_pages_that_are_not_there_are_not_found(toy: Make) -> None:
    browser = client(toy("stages: {a: {cmd: echo 1 > x, outs: [x]}}", {}).path)
    for path in ("docs/", "docs/x", "report/", "report/index.html", "so-far/", "data/metrics/", "report/%00", "none"):
        assert browser.get(path).status_code == 404, path
    assert browser.get(f"report/{'x' * 300}").status_code == 404
    assert browser.get("history").status_code == 200


def test_nothing_beside_the_report_and_the_scores_is_served(finished: Path) -> None:
    browser = client(finished)
    assert (finished / "mlflow.db").is_file()
    for path in (
        "mlflow.db",
        "params.yaml",
        "report/../mlflow.db",
        "report/%2e%2e/mlflow.db",
        "data/merged/ties/README.md",
    ):
        assert browser.get(path).status_code == 404
