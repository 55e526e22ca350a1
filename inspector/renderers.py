"""The table of renderers for results. Results are data, and do not import the code that draws them."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from .files import write_file

GraphTheme = Literal["auto", "light", "dark"]
"""The theme of a figure or a graph's picture; "auto" follows the page around it, or the viewer's settings."""

DRAWN_BY = {
    "graph as SVG": "inspector.drawing.svg:graph_to_svg",
    "graph as JSON": "inspector.drawing.to_json:graph_to_json",
    "graph as a summary": "inspector.graph.summarize_modules:module_summary",
    "graph for Graphviz": "inspector.drawing.dot:graph_to_graphviz",
    "findings as HTML": "widgets.pages.report_html:cells_html",
    "table as HTML": "widgets.pages.report_html:table_html",
    "phases as HTML": "widgets.pages.report_html:phases_html",
    "run as HTML": "widgets.pages.report_html:run_html",
    "peak as HTML": "widgets.pages.report_html:peak_html",
    "advice as HTML": "widgets.pages.report_html:advice_html",
    "frontier as HTML": "widgets.pages.frontier_page:frontier_html",
    "frontier as a page": "widgets.pages.frontier_page:page_html",
    "training as HTML": "widgets.pages.loop_page:training_html",
    "training as a page": "widgets.pages.loop_page:page_html",
    "training as a widget": "widgets.pages.loop_widget:LoopPage",
    "orders as HTML": "widgets.pages.order_study_page:study_html",
    "recomputation as HTML": "widgets.pages.recompute_study_page:study_html",
    "accumulation as HTML": "widgets.pages.accumulation_page:study_html",
    "step as a figure": "widgets.pages.step_figure:step_figure",
    "lifetimes of a step as a figure": "widgets.pages.step_figure:step_lifetimes_figure",
    "fit as HTML": "widgets.pages.fit_page:fit_html",
    "fit as a page": "widgets.pages.fit_page:page_html",
    "levels as a figure": "widgets.pages.memory_figures:memory_figure",
    "lifetimes as a figure": "widgets.pages.memory_figures:lifetimes_figure",
    "peak as a figure": "widgets.pages.memory_figures:peak_figure",
    "recomputation comparison as a figure": "widgets.pages.recompute_figures:recomputed_figure",
    "devices over time as a figure": "widgets.pages.gantt_figure:gantt_figure",
    "orders as a figure": "widgets.pages.order_study_page:study_figure",
    "recomputation as a figure": "widgets.pages.recompute_study_page:study_figure",
    "accumulation as a figure": "widgets.pages.accumulation_page:study_figure",
    "devices over time as a page": "widgets.deck.simulated_devices:save_devices",
    "devices over time as a deck": "widgets.deck.simulated_devices:SimulatedDevices",
    "comparison as a page": "widgets.pages.comparison_page:page_html",
    "orders as a page": "widgets.pages.order_study_page:page_html",
    "recomputation as a page": "widgets.pages.recompute_study_page:page_html",
    "accumulation as a page": "widgets.pages.accumulation_page:page_html",
    "graph as a table": "engine.recording.pandas_tables:graph_frame",
    "run as a table": "engine.recording.pandas_tables:run_frame",
    "trace as a table": "engine.recording.pandas_tables:trace_frame",
    "step as a table": "engine.training.step_exports:step_frame",
    "steps as a table": "engine.training.step_exports:steps_frame",
    "run for Perfetto": "engine.recording.perfetto:save_run",
    "steps for Perfetto": "engine.training.step_exports:save_steps",
    "run as a file": "engine.recording.run_file:save",
    "run as a page": "widgets.deck.run_page_data:save_run",
    "step as a page": "widgets.deck.step_page_data:save_step",
    "step as a deck": "widgets.deck.run_player:StepRecording",
    "run as a deck": "widgets.deck.run_player:Recording",
    "an error in notes": "engine.session.error_notes.explain_error:explain_error",
    "session or deck": "widgets.deck.open_deck:debug",
    "a deck": "widgets.deck.open_deck:deck",
    "session at a prompt": "widgets.terminal.prompt:interact",
}
"""The function for each kind of output, as "module:function" in the package. Its first argument is the result."""


def drawn(what: str, *given: object, **options: object) -> Any:
    """Call the renderer for `what`, importing its module on first use, and return its result.

    Raises:
        ModuleNotFoundError: A package that the module needs is not installed, such as plotly for a figure.
    """
    module, _, function = DRAWN_BY[what].partition(":")
    return getattr(import_module(f"{__name__.partition('.')[0]}.{module}"), function)(*given, **options)


def text_of(what: str, *given: object, **options: object) -> str:
    """Return the renderer's result as text: HTML, SVG or JSON."""
    return str(drawn(what, *given, **options))


def saved_page(what: str, path: str | Path, *given: object) -> Path:
    """Render a page as text and write it to a file."""
    return write_file(path, text_of(what, *given))


def saved(what: str, *given: object, **options: object) -> Path:
    """Call a renderer that writes a file, and return the file's path."""
    return Path(drawn(what, *given, **options))
