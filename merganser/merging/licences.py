"""Licences whose terms a merge of models may break: a small table, not legal advice.

Creative Commons licences have their terms in the name (`cc-by-nc-sa-4.0`); the table has the terms of others. Ids are
those of hubs and SPDX. An unlisted licence is reported as one with unknown terms.
"""

import re
from collections.abc import Collection, Iterator, Mapping

from merganser.checkpoints.companions import ModelOrigin

NON_COMMERCIAL, NO_DERIVATIVES, SHARE_ALIKE = "nc", "nd", "sa"  # as Creative Commons abbreviates them
LICENCES = "licences"  # in the profile of a merge: the warnings
SHOWN = 3  # licences of a line, and sources of a licence
LONGEST = 80  # characters of a name in a line

_CREATIVE_COMMONS = re.compile(r"cc-by(-nc)?(-nd|-sa)?-[0-9.]+")
_SAME = re.compile(r"-(only|or-later)$")  # of one licence's text
_ASKS_NOTHING = (
    *("0bsd", "afl-3.0", "apache-2.0", "artistic-2.0", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear"),
    *("bsl-1.0", "cc", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "ecl-2.0", "isc", "mit", "mit-0"),
    *("ncsa", "odc-by", "pddl", "postgresql", "unlicense", "wtfpl", "zlib"),
)
_KEEPS_ITS_LICENCE = (
    *("agpl-3.0", "cdla-sharing-1.0", "epl-1.0", "epl-2.0", "eupl-1.1", "eupl-1.2", "gfdl", "gpl", "gpl-2.0"),
    *("gpl-3.0", "lgpl", "lgpl-2.1", "lgpl-3.0", "mpl-2.0", "odbl", "osl-3.0"),
)
_TERMS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_ASKS_NOTHING, frozenset[str]()),
    **dict.fromkeys(_KEEPS_ITS_LICENCE, frozenset([SHARE_ALIKE])),
    "fair-noncommercial-research-license": frozenset([NON_COMMERCIAL]),
}


def terms_of(licence: str) -> frozenset[str] | None:
    """Return a licence's terms as Creative Commons abbreviations; None if they are not known.

    >>> sorted(terms_of("CC-BY-NC-SA-4.0") or ())
    ['nc', 'sa']
    >>> terms_of("mit"), terms_of("llama3")
    (frozenset(), None)
    """
    name = _text_of(licence)
    if match := _CREATIVE_COMMONS.fullmatch(name):
        return frozenset(part.removeprefix("-") for part in match.groups() if part)
    return _TERMS.get(name)


def licence_warnings(origins: Mapping[str, ModelOrigin]) -> list[str]:
    """Return warnings about licences of a merge's models that do not go together, with the term that conflicts.

    Each line names licences and the sources that have them. The mean of several models has the licences of all of
    them. If a model has several licences, all their terms count.
    """
    models = [one for one in origins.values() if one.kind != "mean"]
    return list(_warnings(models)) if any(one.licences for one in models) else []


def _warnings(models: Collection[ModelOrigin]) -> Iterator[str]:
    all_of_them = sorted({licence for one in models for licence in one.licences})
    has = {each: sorted({_short(one.name) for one in models if each in one.licences}) for each in all_of_them}
    asks = {licence: terms_of(licence) for licence in has}

    def named(licences: Collection[str]) -> str:
        return _some([f"{_short(licence)} ({_some(has[licence])})" for licence in licences])

    def asking(term: str) -> list[str]:
        return [licence for licence, terms in asks.items() if terms and term in terms]

    if fixed := asking(NO_DERIVATIVES):
        yield f"no derivatives: {named(fixed)} may not be passed on changed, and a merge is a change"
    free = [licence for licence, terms in asks.items() if terms is not None and NON_COMMERCIAL not in terms]
    if free and (closed := asking(NON_COMMERCIAL)):
        yield f"non-commercial: {named(closed)} does not allow commercial use, {named(free)} does"
    kept = asking(SHARE_ALIKE)
    if len({_text_of(licence) for licence in kept}) > 1:
        yield f"share alike: what is made with each of {named(kept)} is to keep its licence, and these differ"
    unknown = [licence for licence, terms in asks.items() if terms is None]
    if unknown and len(has) > 1:
        yield f"other terms, which are not known here: {named(unknown)}"
    if without := sorted({_short(one.name) for one in models if not one.licences}):
        yield f"no licence is known of {_some(without)}"


def _text_of(licence: str) -> str:
    """Return the name of a licence's text, without the suffix that allows later versions."""
    return _SAME.sub("", licence.lower())


def _some(names: Collection[str]) -> str:
    shown = list(names)[:SHOWN]
    rest = len(names) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"
