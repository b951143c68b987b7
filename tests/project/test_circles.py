"""No two modules import each other, directly or through others, at the top of a file or in a function."""

import graphlib

import grimp


def test_no_circles():
    graph = grimp.build_graph("posattn_jax", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 100
    graphlib.TopologicalSorter(imports).prepare()  # its error names a circle
