# ruff: noqa
import pathlib, re


def sub(path, a, b):
    p = pathlib.Path(path)
    s = p.read_text()
    assert a in s, (path, a)
    p.write_text(s.replace(a, b, 1))


sub("src/ravnest/sandbox/bubblewrap.py", 'with_name("confine.py")', 'with_name("seccomp.py")')
sub("tests/api/test_not_understood.py", '["api/limits.py"]', '["api/field_types.py"]')
p = pathlib.Path("src/ravnest/sandbox/bubblewrap.py")
p.write_text(p.read_text().replace("_CONFINE", "_RESTRICT"))
p = pathlib.Path("tests/agent/test_figures.py")
p.write_text(
    p.read_text()
    .replace(r"ravnest\\.agent\\.workload", r"ravnest\\.agent\\.benchmark")
    .replace(r"ravnest\.agent\.workload", r"ravnest\.agent\.benchmark")
)
