"""The distribution of tests to the processes of `pytest -n auto --dist loadfile`."""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TOGETHER = {
    "second device": (
        "tests/second_device/test_alone.py",
        "tests/test_gpu_table.py",
    ),
    "JupyterLab": (
        "tests/e2e/test_deck_in_lab.py",
        "tests/e2e/test_debugging_in_lab.py",
        "tests/e2e/test_devices_in_lab.py",
        "tests/e2e/test_frontier_in_lab.py",
        "tests/e2e/test_hips_tape.py",
        "tests/e2e/test_loop_in_lab.py",
        "tests/e2e/test_recompute_in_lab.py",
        "tests/e2e/test_reruns_in_lab.py",
        "tests/e2e/test_deck_benchmark.py",
    ),
    "bundler": (
        "tests/test_bundle.py",
        "tests/widgets/deck/test_layout_agrees.py",
        "tests/widgets/deck/test_deck_memory.py",
    ),
}
"""Files that share one server, one `npm ci`, or the second device, which the first of them may have to compile."""

FIRST = (
    *("second device", "JupyterLab", "tests/engine/api/test_fully_shard.py", "bundler", "tests/test_matrix.py"),
    *("tests/widgets/terminal/test_script_debugger.py", "tests/engine/api/test_compiled.py"),
    *("tests/commands/test_run.py", "tests/commands/test_pytest_plugin.py"),
    *("tests/widgets/magic/test_magics.py", "tests/e2e/test_deck_page.py", "tests/e2e/test_timeline_on_page.py"),
    *("tests/e2e/test_debugging_on_page.py", "tests/e2e/test_comparison_page.py", "tests/test_mcp.py"),
    *("tests/engine/memory/test_dtensor_memory.py", "tests/engine/recording/test_run_file.py", "tests/test_json.py"),
    *("tests/engine/session/test_rank_agreement.py", "tests/engine/session/test_conformance.py"),
    *("tests/test_upstream.py", "tests/test_notebooks.py"),
    *("tests/test_models.py", "tests/test_package.py", "tests/test_memory_meter.py", "tests/test_import.py"),
    *("tests/e2e/test_deck_in_marimo.py", "tests/e2e/test_deck_in_notebook.py"),
    *("tests/e2e/test_saved_page.py", "tests/e2e/test_deck_for_everyone.py", "tests/e2e/test_queues_on_page.py"),
    *("tests/inspector/torch_private/test_fake_tensors.py", "tests/inspector/capture/test_build_graph.py"),
    *("tests/widgets/pages/test_memory_figures.py", "tests/widgets/pages/test_shown_figure.py"),
    *("tests/engine/schedule/test_device_queues.py", "tests/engine/execution/test_find_hooks.py"),
    *("tests/engine/api/test_tensor_parallel.py", "tests/test_fuzz.py"),
)
"""Long although few tests: at the end they would leave the other processes without work."""


class WholeFiles(LoadScopeScheduling):
    """The tests of a file run in one process, which makes once what they share; the files with most tests run first.

    `--dist loadgroup` of pytest-xdist 3.8 does not know its groups under pytest 9, where a test's id can't be changed.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((name for name, paths in TOGETHER.items() if path in paths), path)

    def _assign_work_unit(self, node: WorkerController) -> None:
        first = next((name for name in FIRST if name in self.workqueue), None)
        if first is not None:
            self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)
