"""Which licence a file beside a model names in its first lines."""

from pathlib import Path

import pytest

from merganser.hashes import sha256_of
from merganser.sources.licences import facts_of_files, named_in


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("MIT License\n\nCopyright (c) 2024 Somebody\n", "mit"),
        ("\n    Apache License\n    Version 2.0, January 2004\n    http://www.apache.org/licenses/\n", "apache-2.0"),
        ("GNU GENERAL PUBLIC LICENSE\n Version 3, 29 June 2007\n", "gpl-3.0"),
        ("GNU LESSER GENERAL PUBLIC LICENSE\n Version 2.1, February 1999\n", "lgpl-2.1"),
        ("GNU AFFERO GENERAL PUBLIC LICENSE\n Version 3, 19 November 2007\n", "agpl-3.0"),
        ("BSD 3-Clause License\n", "bsd-3-clause"),
        ("Mozilla Public License Version 2.0\n====\n", "mpl-2.0"),
        ("Attribution 4.0 International\n\n=====\n", "cc-by-4.0"),
        ("Creative Commons Attribution-NonCommercial-ShareAlike 4.0 International\n", "cc-by-nc-sa-4.0"),
        ("Attribution-NonCommercial-NoDerivatives 4.0 International\n", "cc-by-nc-nd-4.0"),
        ("Creative Commons Legal Code\n\nCC0 1.0 Universal\n", "cc0-1.0"),
        ("SPDX-License-Identifier: Apache-2.0\n", "apache-2.0"),
        ("Permission is hereby granted, free of charge, to any person\n", None),
        ("Terms of this model\n\nIt is not under the MIT License.\n", None),
        ("Terms of this model, which replace the\nGNU General Public License, Version 3\n", None),
        ("\n" * 20 + "Our own words\n" * 6 + "MIT License\n", None),
        ("Attribution-SomethingElse 4.0 International\n", None),
        ("", None),
    ],
)
def test_a_text_is_known_by_its_first_lines_alone(text: str, name: str | None) -> None:
    assert named_in(text) == name


def test_licence_files_are_kept_by_name_and_sha256_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("Terms of our own\n")
    (tmp_path / "COPYING.txt").write_text("MIT License\n")
    (tmp_path / "licence_plates.csv").write_text("MIT License\n")
    (tmp_path / "LICENSE-large").write_text("MIT License\n" + " " * 2**24)
    assert facts_of_files(tmp_path) == {
        "license_file": [f"{name}, sha256 {sha256_of(tmp_path / name)}" for name in ("COPYING.txt", "LICENSE")],
        "license_in_file": ["mit"],
    }
    assert facts_of_files(tmp_path / "LICENSE") == {}
