# ruff: noqa
"""Move and merge modules, rename symbols. Usage: tool.py SPEC.py ROOT [--check]

SPEC defines
  MODULES = {"agent/main.py": ["agent/joining.py", ...], ...}   (below src/ravnest)
  TESTS   = {"tests/agent/test_x.py": ["tests/agent/test_y.py"]}
  SYMBOLS = {"agent/joining.py": {"old": "new"}}   (top-level names, applied before the moves)
  DOCS = {"agent/main.py": "docstring"}            (docstrings of new modules)
"""

import ast
import collections
import pathlib
import re
import runpy
import sys
import textwrap

spec = runpy.run_path(sys.argv[1])
ROOT = pathlib.Path(sys.argv[2])
CHECK = "--check" in sys.argv
SRC = ROOT / "src"


def dotted(rel):  # "agent/main.py" -> ravnest.agent.main
    p = "ravnest/" + rel
    return p.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


MODS = {dotted(new): [dotted(o) for o in olds] for new, olds in spec.get("MODULES", {}).items()}
NEWREL = {dotted(new): new for new in spec.get("MODULES", {})}
OLDNEW = {o: n for n, olds in MODS.items() for o in olds}
SYM = {dotted(m): d for m, d in spec.get("SYMBOLS", {}).items()}
problems = []


def all_modules():
    out = {}
    for p in sorted((SRC / "ravnest").rglob("*.py")):
        parts = p.relative_to(SRC).with_suffix("").parts
        out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = p
    return out


modules = all_modules()
for o in OLDNEW:
    if o not in modules:
        problems.append(f"no module {o}")

PYFILES = [
    p
    for base in ("src", "tests", "benchmarks", "tools", "examples", "docs")
    for p in sorted((ROOT / base).rglob("*.py"))
] + [ROOT / "dev.py"]

# ---------- scopes ----------
FUNCS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def bound_in(fn):
    """names bound in this function's own scope"""
    names, globs = set(), set()
    if isinstance(fn, COMPS):
        for g in fn.generators:
            for n in ast.walk(g.target):
                if isinstance(n, ast.Name):
                    names.add(n.id)
        return names
    a = fn.args
    for x in [
        *a.posonlyargs,
        *a.args,
        *a.kwonlyargs,
        *([a.vararg] if a.vararg else []),
        *([a.kwarg] if a.kwarg else []),
    ]:
        names.add(x.arg)

    def visit(n):
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(n.name)
            for d in n.decorator_list:
                visit(d)
            return
        if isinstance(n, (ast.Lambda, *COMPS)):
            for c in ast.walk(n):
                if isinstance(c, ast.NamedExpr):
                    names.add(c.target.id)
            return
        if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
            names.add(n.id)
        if isinstance(n, ast.Global):
            globs.update(n.names)
        if isinstance(n, (ast.Import, ast.ImportFrom)):
            for al in n.names:
                names.add((al.asname or al.name).split(".")[0])
        if isinstance(n, ast.ExceptHandler) and n.name:
            names.add(n.name)
        if isinstance(n, (ast.MatchAs, ast.MatchStar)) and n.name:
            names.add(n.name)
        if isinstance(n, ast.MatchMapping) and n.rest:
            names.add(n.rest)
        for c in ast.iter_child_nodes(n):
            visit(c)

    body = fn.body if isinstance(fn.body, list) else [fn.body]
    for s in body:
        visit(s)
    return names - globs


def global_refs(tree, skip_import_scopes=True):
    """yield every Name node that refers to a module-global name (and def/class/global statements are left to caller)"""
    out = []

    def visit(n, scopes):
        if isinstance(n, ast.Name):
            if not any(n.id in s for s in scopes):
                out.append(n)
            return
        if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for d in n.decorator_list:
                visit(d, scopes)
            for x in [*n.args.defaults, *[d for d in n.args.kw_defaults if d]]:
                visit(x, scopes)
            for x in [
                *n.args.posonlyargs,
                *n.args.args,
                *n.args.kwonlyargs,
                n.args.vararg,
                n.args.kwarg,
            ]:
                if x is not None and x.annotation:
                    visit(x.annotation, scopes)
            if n.returns:
                visit(n.returns, scopes)
            own = bound_in(n)
            # class scopes are invisible inside functions
            inner = [s for s in scopes if not getattr(s, "is_class", False)] + [Scope(own)]
            for s in n.body:
                visit(s, inner)
            return
        if isinstance(n, ast.Lambda):
            inner = [s for s in scopes if not getattr(s, "is_class", False)] + [Scope(bound_in(n))]
            for x in [*n.args.defaults, *[d for d in n.args.kw_defaults if d]]:
                visit(x, scopes)
            visit(n.body, inner)
            return
        if isinstance(n, COMPS):
            inner = scopes + [Scope(bound_in(n))]
            for c in ast.iter_child_nodes(n):
                visit(c, inner)
            return
        if isinstance(n, ast.ClassDef):
            for x in [*n.bases, *[k.value for k in n.keywords], *n.decorator_list]:
                visit(x, scopes)
            names = set()
            for s in n.body:
                for c in (
                    [s]
                    if isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                    else ast.walk(s)
                ):
                    if isinstance(c, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                        names.add(c.name)
                    elif isinstance(c, ast.Name) and isinstance(c.ctx, ast.Store):
                        names.add(c.id)
            # a class-level name does not hide the global before it is bound (annotations): approximate
            sc = Scope(names)
            sc.is_class = True
            for s in n.body:
                visit(s, scopes + [sc])
            return
        for c in ast.iter_child_nodes(n):
            visit(c, scopes)

    class Scope(set):
        is_class = False

    for s in tree.body:
        visit(s, [])
    return out


class Edits:
    def __init__(self, text):
        self.lines = [l.encode() for l in text.split("\n")]
        self.e = []

    def at(self, line, col, old, new):
        self.e.append((line, col, old, new))

    def apply(self):
        done = set()
        for line, col, old, new in sorted(set(self.e), reverse=True):
            if (line, col) in done:
                continue
            done.add((line, col))
            b = self.lines[line - 1]
            assert b[col : col + len(old.encode())] == old.encode(), (line, col, old, b)
            self.lines[line - 1] = b[:col] + new.encode() + b[col + len(old.encode()) :]
        return "\n".join(l.decode() for l in self.lines)


def find_after(text_lines, line, col, word):
    """position of word as a token at or after (line, col)"""
    for i in range(line - 1, len(text_lines)):
        start = col if i == line - 1 else 0
        m = re.compile(rb"(?<![\w.])" + word.encode() + rb"(?!\w)").search(text_lines[i], start)
        if m:
            return i + 1, m.start()
    raise LookupError(word)


def module_of(path):
    if SRC in path.parents:
        parts = path.relative_to(SRC).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return None


# ---------- symbol renames ----------
def exports():
    """re-exports: (module, name) -> (origin module, name), for packages' __init__"""
    out = {}
    for m, p in modules.items():
        t = ast.parse(p.read_text())
        for n in t.body:
            if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("ravnest"):
                for a in n.names:
                    out[(m, a.asname or a.name)] = (n.module, a.name)
    return out


def rename_symbols():
    if not SYM:
        return
    re_exp = exports()

    def origin(m, n):
        seen = set()
        while (m, n) in re_exp and (m, n) not in seen:
            seen.add((m, n))
            m, n = re_exp[(m, n)]
        return m, n

    def new_name(m, n):
        om, on = origin(m, n)
        return SYM.get(om, {}).get(on)

    for p in PYFILES:
        text = p.read_text()
        if not any(re.search(rf"\b{re.escape(o)}\b", text) for d in SYM.values() for o in d):
            continue
        tree = ast.parse(text)
        ed = Edits(text)
        mod = module_of(p)
        glob = {}  # local global name -> new

        def take_imports(n, scope_nodes):
            pass

        for n in ast.walk(tree):
            if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("ravnest"):
                for a in n.names:
                    nn = new_name(n.module, a.name)
                    if nn:
                        ed.at(a.lineno, a.col_offset, a.name, nn)
                        if a.asname is None:
                            glob.setdefault(a.name, nn)
                        for d in ():
                            pass
        local_imports = {}
        # function-level imports: names bound in that function by import
        for fn in ast.walk(tree):
            if isinstance(fn, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for n in ast.walk(fn):
                    if (
                        isinstance(n, ast.ImportFrom)
                        and n.module
                        and n.module.startswith("ravnest")
                    ):
                        for a in n.names:
                            nn = new_name(n.module, a.name)
                            if nn and a.asname is None:
                                for x in ast.walk(fn):
                                    if isinstance(x, ast.Name) and x.id == a.name:
                                        ed.at(x.lineno, x.col_offset, a.name, nn)
        if mod in SYM:
            for o, nn in SYM[mod].items():
                glob[o] = nn
            for s in tree.body:
                if (
                    isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
                    and s.name in SYM[mod]
                ):
                    kw = "class" if isinstance(s, ast.ClassDef) else "def"
                    l, c = find_after(ed.lines, s.lineno, s.col_offset, kw)
                    l, c = find_after(ed.lines, l, c + len(kw), s.name)
                    ed.at(l, c, s.name, SYM[mod][s.name])
            found = {s.name for s in tree.body if hasattr(s, "name")} | {
                x.id
                for s in tree.body
                for x in ast.walk(s)
                if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
            }
            for o in SYM[mod]:
                if o not in found:
                    problems.append(f"{mod} has no {o}")
                if SYM[mod][o] in found:
                    problems.append(f"{mod} already has {SYM[mod][o]}")
            for n in ast.walk(tree):
                if isinstance(n, ast.Global):
                    for name in n.names:
                        if name in SYM[mod]:
                            l, c = find_after(ed.lines, n.lineno, n.col_offset, name)
                            ed.at(l, c, name, SYM[mod][name])
        top = (
            {
                a.asname or a.name
                for s in tree.body
                for n in ast.walk(s)
                if isinstance(n, ast.ImportFrom)
                for a in n.names
            }
            if True
            else set()
        )
        for n in global_refs(tree):
            if n.id in glob and (n.id in top or (mod in SYM and n.id in SYM[mod])):
                ed.at(n.lineno, n.col_offset, n.id, glob[n.id])
        # string annotations / cast("X")
        for n in ast.walk(tree):
            if (
                isinstance(n, ast.Constant)
                and isinstance(n.value, str)
                and n.value in glob
                and n.lineno == n.end_lineno
            ):
                seg = ed.lines[n.lineno - 1][n.col_offset : n.end_col_offset].decode()
                if seg in (f'"{n.value}"', f"'{n.value}'"):
                    in_all = any(
                        isinstance(q, ast.Assign)
                        and any(isinstance(t, ast.Name) and t.id == "__all__" for t in q.targets)
                        and q.lineno <= n.lineno <= q.end_lineno
                        for q in tree.body
                    )
                    if n.value[0].isupper() or n.value.startswith("_") or in_all:
                        ed.at(n.lineno, n.col_offset, seg, f'"{glob[n.value]}"')
        for n in ast.walk(tree):
            for ann in (getattr(n, "annotation", None), getattr(n, "returns", None)):
                if ann is None:
                    continue
                for c in ast.walk(ann):
                    if isinstance(c, ast.Constant) and isinstance(c.value, str):
                        seg = ed.lines[c.lineno - 1][c.col_offset : c.end_col_offset].decode()
                        ns = seg
                        for o, nn in glob.items():
                            ns = re.sub(rf"(?<![\w.]){o}(?!\w)", nn, ns)
                        if ns != seg and c.lineno == c.end_lineno:
                            ed.at(c.lineno, c.col_offset, seg, ns)
        # module attributes: alias.name
        aliases = {}
        for n in ast.walk(tree):
            if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("ravnest"):
                for a in n.names:
                    if f"{n.module}.{a.name}" in modules:
                        aliases[a.asname or a.name] = f"{n.module}.{a.name}"
        for n in ast.walk(tree):
            if (
                isinstance(n, ast.Attribute)
                and isinstance(n.value, ast.Name)
                and n.value.id in aliases
            ):
                nn = new_name(aliases[n.value.id], n.attr)
                if nn:
                    l, c = n.end_lineno, n.end_col_offset - len(n.attr.encode())
                    ed.at(l, c, n.attr, nn)
            # monkeypatch.setattr(module, "name", ...)
            if (
                isinstance(n, ast.Call)
                and len(n.args) >= 2
                and isinstance(n.args[0], ast.Name)
                and n.args[0].id in aliases
                and isinstance(n.args[1], ast.Constant)
                and isinstance(n.args[1].value, str)
            ):
                nn = new_name(aliases[n.args[0].id], n.args[1].value)
                if nn:
                    a = n.args[1]
                    seg = ed.lines[a.lineno - 1][a.col_offset : a.end_col_offset].decode()
                    ed.at(a.lineno, a.col_offset, seg, f'"{nn}"')
        new = ed.apply()
        # backticks in docstrings and comments, for names that cannot be words
        for o, nn in glob.items():
            if o[0].isupper() or "_" in o.strip("_"):
                new = re.sub(rf"`{re.escape(o)}(\(?\)?)`", rf"`{nn}\1`", new)
        if new != text and not CHECK:
            p.write_text(new)
    for p in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks/RESULTS.md"]:
        text = new = p.read_text()
        for d in SYM.values():
            for o, nn in d.items():
                if o[0].isupper() and o not in (
                    "Control",
                    "Search",
                    "Work",
                    "Share",
                    "Root",
                    "Up",
                    "Lost",
                    "Limits",
                    "Settings",
                    "Part",
                    "Start",
                    "Close",
                    "Send",
                    "Lines",
                    "Rules",
                    "Facts",
                    "Identity",
                    "Machine",
                    "Speed",
                    "Stream",
                    "Finish",
                    "Show",
                    "Say",
                    "Tell",
                    "Found",
                    "Slot",
                    "Place",
                    "Rings",
                    "Answer",
                    "Call",
                    "Noise",
                    "Bar",
                    "Scene",
                    "Outcome",
                    "Vector",
                    "Layout",
                    "Watch",
                    "Witness",
                    "Division",
                    "Course",
                ):
                    new = re.sub(rf"`{re.escape(o)}(\(?\)?)`", rf"`{nn}\1`", new)
        if new != text and not CHECK:
            p.write_text(new)


# ---------- moves ----------
def parts_of(text):
    """docstring text, import source lines, rest"""
    tree = ast.parse(text)
    lines = text.split("\n")
    doc = None
    taken = set()
    imports = []
    typing_only = []
    for i, s in enumerate(tree.body):
        is_doc = (
            i == 0
            and isinstance(s, ast.Expr)
            and isinstance(s.value, ast.Constant)
            and isinstance(s.value.value, str)
        )
        is_imp = isinstance(s, (ast.Import, ast.ImportFrom))
        is_tc = (
            isinstance(s, ast.If) and isinstance(s.test, ast.Name) and s.test.id == "TYPE_CHECKING"
        )
        if is_doc or is_imp or is_tc:
            taken.update(range(s.lineno - 1, s.end_lineno))
            if is_doc:
                doc = "\n".join(lines[s.lineno - 1 : s.end_lineno]).strip()[3:-3]
            if is_imp:
                imports.append("\n".join(lines[s.lineno - 1 : s.end_lineno]))
            if is_tc:
                typing_only += lines[s.body[0].lineno - 1 : s.end_lineno]
    rest = [l for i, l in enumerate(lines) if i not in taken]
    while rest and not rest[0].strip():
        rest.pop(0)
    while rest and not rest[-1].strip():
        rest.pop()
    # squeeze the gap where imports were
    return doc, imports, typing_only, "\n".join(rest)


def rewrite_imports(text, own_new, path):
    """imports of old modules -> new ones; own_new: the new dotted name of this file (imports from itself vanish)"""
    tree = ast.parse(text)
    ed = Edits(text)
    lines = text.split("\n")
    drop = []
    renames = {}
    inline = set()
    repl = []  # (start line, end line, new text)
    for n in ast.walk(tree):
        if isinstance(n, ast.Import):
            for a in n.names:
                if a.name in OLDNEW:
                    ed.at(a.lineno, a.col_offset, a.name, OLDNEW[a.name])
                    if a.asname is None:
                        problems.append(f"{path}: import {a.name} unaliased")
        if not (isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("ravnest")):
            continue
        groups = collections.OrderedDict()
        changed = False
        for a in n.names:
            full = f"{n.module}.{a.name}"
            if full in modules:  # a module
                target = OLDNEW.get(full, full)
                if target != full:
                    changed = True
                if own_new is not None and target == own_new:
                    inline.add(a.asname or a.name)
                    changed = True
                    continue
                pkg, _, base = target.rpartition(".")
                groups.setdefault(pkg, []).append(
                    base + (f" as {a.asname}" if a.asname and a.asname != base else "")
                )
                if not a.asname and base != a.name:
                    clash = any(
                        (
                            isinstance(x, ast.Name)
                            and isinstance(x.ctx, (ast.Store,))
                            and x.id in (a.name, base)
                        )
                        or (isinstance(x, ast.arg) and x.arg in (a.name, base))
                        or (isinstance(x, ast.Name) and x.id == base)
                        or (isinstance(x, ast.alias) and (x.asname or x.name) == base)
                        for x in ast.walk(tree)
                    )
                    if clash:
                        groups[pkg][-1] += f" as {a.name}"
                    else:
                        renames[a.name] = base
            else:
                target = OLDNEW.get(n.module, n.module)
                if target != n.module:
                    changed = True
                if own_new is not None and target == own_new:
                    changed = True
                    if a.asname:
                        problems.append(f"{path}: alias {a.asname} of own {a.name}")
                    continue
                groups.setdefault(target, []).append(
                    a.name + (f" as {a.asname}" if a.asname else "")
                )
        if changed:
            indent = " " * n.col_offset
            new = "\n".join(
                f"{indent}from {m} import {', '.join(names) if len(indent) + len(m) + len(', '.join(names)) < 85 else '(' + ', '.join(names) + ',)'}"
                for m, names in groups.items()
            )
            tail = lines[n.lineno - 1].split("#", 1)[1] if "# noqa" in lines[n.lineno - 1] else ""
            if tail:
                new = "\n".join(l + "  #" + tail for l in new.split("\n"))
            repl.append((n.lineno, n.end_lineno, new))
    # attribute bases
    if renames or inline:
        for n in ast.walk(tree):
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name):
                if n.value.id in inline:
                    if n.value.lineno != n.end_lineno:
                        problems.append(f"{path}:{n.lineno} multi-line {n.value.id}.{n.attr}")
                    ed.at(n.value.lineno, n.value.col_offset, n.value.id + ".", "")
        for n in ast.walk(tree):
            if isinstance(n, ast.Name) and n.id in renames:
                if isinstance(n.ctx, ast.Store):
                    problems.append(f"{path}:{n.lineno} local {n.id} hides the module")
                ed.at(n.lineno, n.col_offset, n.id, renames[n.id])
            if isinstance(n, ast.arg) and n.arg in renames:
                problems.append(f"{path}:{n.lineno} argument {n.arg} hides the module")
    text = ed.apply()
    lines = text.split("\n")
    for a, b, new in sorted(repl, reverse=True):
        lines[a - 1 : b] = new.split("\n") if new else []
        if not new and lines[a - 2 : a - 1] and lines[a - 2].rstrip().endswith(":"):
            problems.append(f"{path}:{a} empty block")
    return "\n".join(lines)


def fix_programs(text):
    """programs in strings: names that they import from renamed modules"""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
    lines = text.split("\n")
    starts = [0]
    for l in lines:
        starts.append(starts[-1] + len(l.encode()) + 1)
    data = text.encode()
    repl = []
    for n in ast.walk(tree):
        if (
            isinstance(n, ast.Constant)
            and isinstance(n.value, str)
            and re.search(r"(from|import) ravnest", n.value)
        ):
            a, b = starts[n.lineno - 1] + n.col_offset, starts[n.end_lineno - 1] + n.end_col_offset
            seg = data[a:b].decode()
            new = seg
            for m in re.finditer(r"from (ravnest[\w.]*) import ([\w, ]+)", seg):
                for name in [x.strip() for x in m.group(2).split(",")]:
                    full = m.group(1) + "." + name
                    nn = SYM.get(m.group(1), {}).get(name)
                    if nn:
                        new = re.sub(rf"(?<![\w.]){name}(?!\w)", nn, new)
                    if full in OLDNEW and OLDNEW[full] != full:
                        pkg, _, base = OLDNEW[full].rpartition(".")
                        new = re.sub(
                            rf"from {re.escape(m.group(1))} import {name}\b",
                            f"from {pkg} import {base}",
                            new,
                        )
                        new = re.sub(rf"(?<![\w.]){name}\.", base + ".", new)
            if new != seg:
                repl.append((a, b, new))
    for a, b, new in sorted(repl, reverse=True):
        data = data[:a] + new.encode() + data[b:]
    return data.decode()


def fix_strings(text):
    for o in sorted(OLDNEW, key=len, reverse=True):
        if OLDNEW[o] != o:
            text = re.sub(rf"(?<![\w.]){re.escape(o)}(?!\w)", OLDNEW[o], text)
    return text


def move():
    out = {}
    gone = []
    for p in PYFILES:
        mod = module_of(p)
        text = p.read_text()
        own = OLDNEW.get(mod) if mod else None
        text = fix_programs(text)
        out[p] = fix_strings(
            rewrite_imports(text, own if own and (len(MODS[own]) > 1 or True) else mod, p)
        )
    new_files = {}
    for new, olds in MODS.items():
        target = SRC / "ravnest" / NEWREL[new]
        if len(olds) == 1 and dotted(NEWREL[new]) != new:
            pass
        doc0 = None
        imports = []
        tc = []
        bodies = []
        seen = {}
        for o in olds:
            p = modules[o]
            text = out.pop(p)
            gone.append(p)
            doc, imps, tcs, rest = parts_of(text)
            imports += imps
            tc += tcs
            t = ast.parse(rest)
            drop = set()
            for s in t.body:
                names = (
                    [s.name]
                    if hasattr(s, "name")
                    else [
                        x.id
                        for x in ast.walk(s)
                        if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)
                    ]
                    if isinstance(s, (ast.Assign, ast.AnnAssign))
                    else []
                )
                for name in names:
                    if name in seen and seen[name][0] != o:
                        src = ast.unparse(s)
                        if src == seen[name][1] and not hasattr(s, "name"):
                            drop.update(range(s.lineno - 1, s.end_lineno))
                        else:
                            problems.append(f"{new}: {name} of {o} also in {seen[name][0]}")
                    else:
                        seen[name] = (o, ast.unparse(s))
            rest = "\n".join(l for i, l in enumerate(rest.split("\n")) if i not in drop).strip("\n")
            if doc0 is None:
                doc0 = spec.get("DOCS", {}).get(NEWREL[new], doc)
            elif len(olds) > 1:
                d = [l.strip() for l in (doc or "").strip().split("\n")]
                head = d[0]
                more = [l for l in d[1:]]
                while more and not more[0]:
                    more.pop(0)
                paras = "\n".join([head] + more).split("\n\n")
                wrapped = "\n#\n".join(
                    "\n".join("# " + w for w in textwrap.wrap(" ".join(q.split("\n")), 96))
                    if "    " not in q
                    else "\n".join("# " + w for w in q.split("\n"))
                    for q in paras
                )
                rest = wrapped + "\n\n\n" + rest
            if rest:
                bodies.append(rest)
        text = ""
        if doc0:
            d = doc0.strip("\n")
            text += '"""' + d + ("\n" if "\n" in d else "") + '"""\n\n'
        text += "\n".join(imports) + "\n"
        if tc:
            text += "\nif TYPE_CHECKING:\n" + "\n".join(tc) + "\n"
        text += "\n" + "\n\n\n".join(bodies) + "\n"
        new_files[target] = text
    if problems:
        return
    if CHECK:
        return
    for p in gone:
        p.unlink()
    for p, text in out.items():
        if text != p.read_text():
            p.write_text(text)
    for p, text in new_files.items():
        p.parent.mkdir(parents=True, exist_ok=True)
        p.write_text(text)
        init = p.parent / "__init__.py"
        if not init.exists():
            print("no", init)
    for d in sorted((SRC / "ravnest").rglob("*"), reverse=True):
        if d.is_dir() and not [x for x in d.iterdir() if x.name != "__pycache__"]:
            __import__("shutil").rmtree(d)
    # prose: file names
    for p in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "benchmarks/RESULTS.md",
        ROOT / ".ci/run",
        ROOT / "pyproject.toml",
    ]:
        text = new = p.read_text()
        new = fix_strings(new)
        for n, olds in MODS.items():
            for o in olds:
                a, b = o.removeprefix("ravnest.").replace(".", "/") + ".py", NEWREL[n]
                new = re.sub(rf"(?<![\w/]){re.escape(a)}\b", b, new)
                new = new.replace("src/ravnest/" + a, "src/ravnest/" + b).replace(
                    "`ravnest/" + a, "`ravnest/" + b
                )
        if new != text:
            p.write_text(new)


def folder_cycles(mods_now, only="ravnest."):
    """between packages, with the mapping applied"""
    edges = collections.defaultdict(set)
    why = {}
    for m, p in mods_now.items():
        nm = OLDNEW.get(m, m)
        is_pkg = NEWREL.get(nm, "").endswith("__init__.py") or (
            nm in modules and modules[nm].name == "__init__.py"
        )
        pk = nm if is_pkg else nm.rpartition(".")[0]
        for n in ast.walk(ast.parse(p.read_text())):
            ts = []
            if isinstance(n, ast.ImportFrom) and n.module and n.module.startswith("ravnest"):
                for a in n.names:
                    f = f"{n.module}.{a.name}"
                    ts.append(f if f in mods_now else n.module)
            elif isinstance(n, ast.Import):
                ts += [a.name for a in n.names if a.name in mods_now]
            for t in ts:
                nt = OLDNEW.get(t, t)
                tp = (
                    nt
                    if (nt in modules and modules[nt].name == "__init__.py")
                    else nt.rpartition(".")[0]
                )
                if pk == "ravnest":
                    pk = nm
                if tp == "ravnest":
                    tp = nt
                if tp != pk:
                    edges[pk].add(tp)
                    why.setdefault((pk, tp), []).append(f"{m}->{t}")
    # strongly connected
    idx = {}
    low = {}
    st = []
    comps = []

    def sc(v):
        idx[v] = low[v] = len(idx)
        st.append(v)
        for w in edges.get(v, ()):
            if w not in idx:
                sc(w)
                low[v] = min(low[v], low[w])
            elif w in st:
                low[v] = min(low[v], idx[w])
        if low[v] == idx[v]:
            c = []
            while True:
                w = st.pop()
                c.append(w)
                if w == v:
                    break
            if len(c) > 1:
                comps.append(c)

    sys.setrecursionlimit(10000)
    for v in list(edges):
        if v not in idx:
            sc(v)
    for c in comps:
        print("CYCLE", sorted(c))
        for a in sorted(c):
            for b in sorted(c):
                if (a, b) in why:
                    print(
                        "   ",
                        a.removeprefix("ravnest."),
                        "->",
                        b.removeprefix("ravnest."),
                        " ".join(sorted({w.replace("ravnest.", "") for w in why[(a, b)]}))[:900],
                        len(why[(a, b)]),
                    )


if __name__ == "__main__":
    if "--cycles" in sys.argv:
        folder_cycles(modules)
    else:
        rename_symbols()
        if problems:
            print("\n".join(problems))
            sys.exit(1)
        modules = all_modules()
        move()
        print("\n".join(problems) or "ok")
        sys.exit(bool(problems))
