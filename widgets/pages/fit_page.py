"""The result of `ts.fits` in a notebook and as a page: the table, the memory over the step, and lifetimes."""

from __future__ import annotations

from ...engine.memory.categories import ACTIVATIONS, BATCH, BUFFERS, GRADIENTS, PARAMETERS, STATE, TEMPORARIES
from ...engine.training.fits import Fit
from ...inspector.text.sizes_and_counts import both_units
from .figure_html import Figures
from .figure_still import figure_svg
from .glossary import glossary_section
from .page_frame import page_frame
from .report_html import phases_html
from .step_figure import step_drawing, step_lifetimes_drawing
from .theme import AUTO, LATER

_POINTS = 700  # of the memory curve on a page
_POINTS_IN_NOTEBOOK = 300  # fewer, because they are stored in the notebook's file

_KINDS = {
    PARAMETERS: "the model's parameters",
    BUFFERS: "the model's buffers",
    BATCH: "the tensors that make_batch returns",
    STATE: "tensors that the optimizer keeps from step to step",
    GRADIENTS: "the .grad of parameters",
    ACTIVATIONS: "alive when the backward starts and allocated in the forward; saved tensors, for example",
    TEMPORARIES: "all other memory, including the workspaces of kernels",
}


def page_html(fit: Fit, title: str) -> str:
    """Return the page that `Fit.save_html` writes."""
    figures = Figures()
    timeline = fit.timeline
    body = f"""<section>{phases_html(fit)}</section>
<section><h2>Memory<span>over a steady step, by category</span></h2>
{figures.html("memory", "Memory over the step", step_drawing(timeline, LATER, _POINTS))}</section>
<section><h2>Lifetimes<span>largest bytes × time first, below the blocks that live during the whole step</span></h2>
{figures.html("lifetimes", "Lifetimes", step_lifetimes_drawing(timeline, LATER))}</section>
{glossary_section({kind: meaning for kind, meaning in _KINDS.items() if kind in timeline.kinds})}"""
    batch = "" if fit.batch_size is None else f" with a batch of {fit.batch_size:,}"
    on = "" if fit.device.type == "meta" else f"{fit.device.type.upper()} "
    subtitle = f"Predicted on fake tensors for {both_units(fit.memory)} of {on}memory{batch}."
    return page_frame(title, subtitle, body, figures)


def fit_html(fit: Fit) -> str:
    """Return the table for a notebook, with still pictures of the memory and the lifetimes below it.

    The pictures have no background and fit any theme.
    """
    drawings = step_drawing(fit.timeline, AUTO, _POINTS_IN_NOTEBOOK), step_lifetimes_drawing(fit.timeline, AUTO)
    pictures = [figure_svg(each, AUTO["panel"]) or "" for each in drawings]
    return "\n".join([phases_html(fit), *(f'<div style="overflow-x:auto">{each}</div>' for each in pictures)])
