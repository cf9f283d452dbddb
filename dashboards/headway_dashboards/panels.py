"""The kinds of panels that there are, made with grafanalib and with one look.

Each takes its title, a description that says how to read it, its queries, a unit and its size (a dashboard is 24 wide). What grafanalib
gets wrong is mended afterwards, in `mending`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from grafanalib import core

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headway_dashboards.model import Query, Value

_REF_IDS: Final = "ABCDEFGHIJKLMNOP"


def stat(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    width: int = 4,
    height: int = 4,
    steps: Sequence[tuple[float, str]] = (),
    colour: str = "text",
    values: Mapping[int, Value] | None = None,
    decimals: int | None = None,
    empty: str = "-",
    link: dict[str, Any] | None = None,
    names: bool = False,
) -> Any:
    """One number, or a few. `steps` are colours from a value on; `values` make words of numbers; `empty` is shown when there is nothing."""
    return core.Stat(
        title=title,
        description=description,
        targets=_targets(queries),
        gridPos=_size(width, height),
        format=unit,
        decimals=decimals,
        graphMode="none",
        reduceCalc="lastNotNull",
        textMode="value_and_name" if names else "value",
        colorMode="value",
        color={"mode": "thresholds"},
        mappings=mappings(values or {}),
        noValue=empty,
        thresholds=_thresholds(steps, colour),
        extraJson=_links(link),
    )


def series(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    width: int = 12,
    height: int = 8,
    colours: Mapping[str, str] | None = None,
    right: Mapping[str, str] | None = None,
    steps: Sequence[tuple[float, str]] = (),
    stacked: bool = False,
    stairs: bool = False,
    most: int | None = None,
    usual_most: int | None = None,
    decimals: int | None = None,
    empty: str = "No data",
    link: dict[str, Any] | None = None,
) -> Any:
    """Lines over time, or areas on each other.

    `right` puts series on an axis of their own, with its unit; `steps` are drawn as lines. The axis ends at `most`, or at `usual_most` or
    above.
    """
    return core.TimeSeries(
        title=title,
        description=description,
        targets=_targets(queries),
        gridPos=_size(width, height),
        unit=unit,
        lineWidth=0 if stacked else 2,
        fillOpacity=80 if stacked else 0,
        stacking={"mode": "normal", "group": "A"} if stacked else {"mode": "none", "group": "A"},
        lineInterpolation="stepAfter" if stairs else "linear",
        showPoints="never",
        spanNulls=False,
        valueMin=0,
        valueMax=most,
        axisSoftMax=usual_most,
        valueDecimals=decimals,
        legendDisplayMode="list",
        legendPlacement="bottom",
        tooltipMode="multi",
        tooltipSort="desc" if stacked else "none",
        thresholds=_thresholds(steps, "transparent"),
        thresholdsStyleMode="line" if steps else "off",
        overrides=[
            *(override(name, {"color": fixed(colour)}) for name, colour in (colours or {}).items()),
            *(
                override(name, {"unit": other, "custom.axisPlacement": "right", "decimals": 0})
                for name, other in (right or {}).items()
            ),
        ],
        extraJson=_merged({"fieldConfig": {"defaults": {"noValue": empty}}}, _links(link)),
    )


def states(
    title: str,
    description: str,
    queries: Sequence[Query],
    values: Mapping[int, Value],
    *,
    width: int = 24,
    height: int = 7,
    legend: bool = True,
    empty: str = "No data",
    link: dict[str, Any] | None = None,
) -> Any:
    """What was so from when to when, a row for each series."""
    return core.StateTimeline(
        title=title,
        description=description,
        targets=_targets(queries),
        gridPos=_size(width, height),
        mappings=mappings(values),
        colorMode="thresholds",
        fillOpacity=85,
        lineWidth=0,
        rowHeight=0.8,
        mergeValues=True,
        showValue="never" if legend else "auto",
        legendDisplayMode="list" if legend else "hidden",
        legendPlacement="bottom",
        thresholds=_thresholds((), "text"),
        extraJson=_merged({"fieldConfig": {"defaults": {"unit": "none", "noValue": empty}}}, _links(link)),
    )


def bars(
    title: str,
    description: str,
    queries: Sequence[Query],
    unit: str,
    *,
    width: int = 8,
    height: int = 8,
    colours: Mapping[str, str] | None = None,
    colour: str = "#3274D9",
    most: int | None = None,
    decimals: int | None = None,
    empty: str = "none",
    link: dict[str, Any] | None = None,
) -> Any:
    """A horizontal bar for each series, as long as its value."""
    defaults = {"noValue": empty, "color": fixed(colour)}
    overrides = [override(name, {"color": fixed(one)}) for name, one in (colours or {}).items()]
    return core.BarGauge(
        title=title,
        description=description,
        targets=_targets(queries),
        gridPos=_size(width, height),
        format=unit,
        calc="lastNotNull",
        min=0,
        max=most,
        decimals=decimals,
        displayMode="basic",
        orientation="horizontal",
        thresholds=_thresholds((), colour),
        extraJson=_merged({"fieldConfig": {"defaults": defaults, "overrides": overrides}}, _links(link)),
    )


def table(
    title: str,
    description: str,
    queries: Sequence[Query],
    *,
    columns: Mapping[str, str],
    overrides: Sequence[dict[str, Any]] = (),
    hidden: Sequence[str] = (),
    values: Sequence[str] = (),
    sort: Sequence[tuple[str, bool]] = (),
    width: int = 24,
    height: int = 8,
    unit: str = "none",
    empty: str = "nothing",
) -> Any:
    """Rows by labels.

    `columns` are labels with their titles, then come `values`: a title for each query. `hidden` are titles that only links use.
    `sort` is by titles, True for the largest first.
    """
    titles = [f"Value #{ref}" for ref in _REF_IDS[: len(queries)]] if len(queries) > 1 else ["Value"]
    names = {**columns, **dict(zip(titles, values, strict=True))}
    kept = "|".join([*columns, *titles])
    organise = {
        "excludeByName": {},
        "indexByName": {name: at for at, name in enumerate([*columns, *titles])},
        "renameByName": names,
    }
    return core.Table(
        title=title,
        description=description,
        targets=_targets(queries),
        gridPos=_size(width, height),
        unit=unit,
        overrides=[*overrides, *(override(name, {"custom.hidden": True}) for name in hidden)],
        sortBy=[core.TableSortByField(name, desc) for name, desc in sort],
        thresholds=_thresholds((), "text"),
        transformations=[
            {"id": "filterFieldsByName", "options": {"include": {"pattern": f"^({kept})$"}}},
            {"id": "merge", "options": {}},
            {"id": "organize", "options": organise},
        ],
        extraJson={"fieldConfig": {"defaults": {"noValue": empty, "custom": {"minWidth": 60}}}},
    )


def text(title: str, content: str, *, width: int = 24, height: int = 4) -> Any:
    """Markdown."""
    return core.Text(title=title, content=content, gridPos=_size(width, height))


def row(title: str, folded: Sequence[Any] = ()) -> Any:
    """A heading. Panels that are `folded` in are shown, and their queries asked, when somebody clicks on it."""
    return core.RowPanel(title=title, gridPos=_size(24, 1), panels=list(folded), collapsed=bool(folded))


def override(name: str, properties: Mapping[str, Any]) -> dict[str, Any]:
    """What is different for the series or column of this name."""
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }


def fixed(colour: str) -> dict[str, str]:
    """One colour whatever the value."""
    return {"mode": "fixed", "fixedColor": colour}


def mappings(values: Mapping[int, Value]) -> list[dict[str, Any]]:
    """Numbers to words."""
    if not values:
        return []
    options = {
        str(number): {"text": value.text, "color": value.colour, "index": at}
        for at, (number, value) in enumerate(values.items())
    }
    return [{"type": "value", "options": options}]


def link(title: str, url: str) -> dict[str, Any]:
    """Where a click on the data leads."""
    return {"title": title, "url": url, "targetBlank": False}


def colour_steps(steps: Sequence[tuple[float, str]], base: str) -> dict[str, Any]:
    """Colours from a value on, for an override."""
    found = [{"color": base, "value": None}, *({"color": colour, "value": value} for value, colour in steps)]
    return {"mode": "absolute", "steps": found}


def _targets(queries: Sequence[Query]) -> list[Any]:
    return [
        core.Target(
            expr=query.expr,
            legendFormat=query.legend,
            format="table" if query.form == "table" else "time_series",
            instant=query.form != "series",
            refId=ref,
            metric="exemplars" if query.exemplars else "",  # grafanalib has no such flag: mending reads this
        )
        for ref, query in zip(_REF_IDS, queries, strict=False)
    ]


def _size(width: int, height: int) -> Any:
    return core.GridPos(h=height, w=width, x=0, y=0)


def _thresholds(steps: Sequence[tuple[float, str]], base: str) -> list[Any]:
    every = ((0.0, base), *steps)
    return [core.Threshold(colour, index, float(value)) for index, (value, colour) in enumerate(every)]


def _links(one: dict[str, Any] | None) -> dict[str, Any]:
    return {} if one is None else {"fieldConfig": {"defaults": {"links": [one]}}}


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Of two nested mappings."""
    found = dict(first)
    for key, value in second.items():
        found[key] = _merged(first[key], value) if isinstance(value, dict) and key in first else value
    return found
