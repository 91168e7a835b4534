"""A command is a function and the line that registers it."""

from pathlib import Path

from tests.chapters import Copy
from tests.command_line.test_start import in_clone

FUNCTION = '''
"""`merganser greet`: greet a model."""

from typing import Annotated

import typer


def greet(name: Annotated[str, typer.Argument(help="The model's name.")]) -> None:
    """Greet a model."""
    print(f"hello, {name}")
'''
IMPORT = "from merganser.command_line.greet import greet\n"
REGISTRATION = '    app.command(epilog=example("merganser greet llama"))(greet)\n'


def test_a_command_without_a_repository_is_a_function_and_its_registration(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", "Add a command")
    copy.add("merganser/command_line/greet.py", FUNCTION)
    copy.insert("merganser/command_line/app.py", IMPORT, "from merganser.command_line.merge ")
    copy.insert("merganser/command_line/app.py", REGISTRATION, "\n\ndef main()")
    assert " greet " in copy.run("-m", "merganser", "--help", folder=tmp_path).stdout
    assert "Example: merganser greet llama" in copy.run("-m", "merganser", "greet", "-h", folder=tmp_path).stdout
    assert copy.run("-m", "merganser", "greet", "llama", folder=tmp_path).stdout == "hello, llama\n"


def test_a_command_of_a_repository_is_registered_elsewhere(tmp_path: Path) -> None:
    copy = Copy(tmp_path / "copy", "Add a command")
    copy.add("flows/commands/greet.py", FUNCTION)
    place, flows = "flows/commands/cli.py", IMPORT.replace("command_line", "flows.commands")
    copy.insert(place, flows, "from merganser.flows.commands.report ")
    copy.insert(place, REGISTRATION.lstrip(), "\nadd_commands(app)\n")
    assert " greet " in copy.run("-m", "merganser", "--help", folder=tmp_path).stdout
    assert copy.run("-m", "merganser", "greet", "llama", folder=tmp_path).stdout == "hello, llama\n"
    # Another clone's Merganser knows it too: it runs the clone's code once that is trusted.
    (copy.folder / "dvc.yaml").touch()
    assert "`merganser trust" in in_clone(copy.folder, tmp_path, "greet", "llama").stderr
    in_clone(copy.folder, tmp_path, "trust", "..")
    assert in_clone(copy.folder, tmp_path, "greet", "llama").stdout == "hello, llama\n"
