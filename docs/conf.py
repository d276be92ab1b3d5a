"""Settings of Sphinx, which builds the site from the pages of this folder. tools/docs calls Sphinx.

Pages are plain Markdown that also reads well on a code host. An extension at the end of this file
adapts them for the site: it adds the table of contents of each section, replaces callouts by boxes,
and redirects links that leave this folder.
"""
import pathlib
import posixpath
import re

project = "Haliax in C++"
author = "the Haliax in C++ authors"
extensions = ["myst_parser", "breathe", "sphinx_copybutton"]
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
templates_path = []
exclude_patterns = ["README.md"]
source_suffix = {".md": "markdown"}
primary_domain = "cpp"
highlight_language = "text"

# Every heading has an anchor, named as on code hosts. A link to a page or an anchor that does not
# exist is an error.
myst_heading_anchors = 5
myst_enable_extensions = ["dollarmath"]
nitpicky = True
nitpick_ignore_regex = [("cpp:.*", ".*")]   # types of the standard library have no page

breathe_projects = {"haliax": "xml"}   # tools/docs passes the path
breathe_default_project = "haliax"
breathe_show_include = False
breathe_default_members = ("members", "undoc-members")
cpp_index_common_prefix = ["haliax::", "haliax::nn::", "haliax::optim::", "haliax::random::",
                           "haliax::debug::"]
copybutton_prompt_text = "$ "

SECTIONS = [("Get started", "get-started"), ("Concepts", "concepts"), ("How-to", "how-to"),
            ("Reference", "reference"),
            ("Internals", "internals"), ("Benchmarks", "benchmarks")]
CALLOUTS = {"Note": "note", "Warning": "warning",
            "Performance": "admonition} Performance\n:class: tip"}
FENCE = re.compile(r"^(`{3,})([^\n]*)\n.*?^\1`*$", re.DOTALL | re.MULTILINE)
CALLOUT = re.compile(r"^> \*\*(Note|Warning|Performance)\.\*\* *((?:.*\n?)(?:>.*\n?)*)",
                     re.MULTILINE)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def contents(folder, title, text, names):
    """A hidden table of contents of a folder: first the pages that `text` links to, in its order,
    then the others."""
    pages = [name for name in names
             if name.startswith(folder + "/") and name.count("/") == folder.count("/") + 1]
    pages += [name for name in names if name == folder + "/api/index"]
    order = [link.removesuffix(".md") for link in re.findall(r"\]\(([\w/.-]+\.md)", text)]
    pages.sort(key=lambda name: (order.index(name) if name in order else len(order), name))
    lines = [f":caption: {title}"] if title else []
    return "\n".join(["```{toctree}", ":hidden:", *lines, "", *("/" + page for page in pages),
                      "```\n"]) if pages else ""


def callout(match):
    text = re.sub(r"^> ?", "", match[2], flags=re.MULTILINE).rstrip("\n")
    name = CALLOUTS[match[1]]
    fence = "`" * max([3] + [len(run) + 1 for run in re.findall(r"^`{3,}", text, re.MULTILINE)])
    start = f"{fence}{{{name}}}\n" if "}" not in name else f"{fence}{{{name}\n"
    return f"{start}\n{text}\n{fence}\n"


def outside(page, repository):
    """Replaces a link to a file outside of docs by a link into the repository, or by its text if no
    repository is configured."""
    def replace(match):
        image, text, target = match.groups()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page),
                                                 target.split("#")[0]))
        if image or re.match(r"\w+:|#", target) or path == "docs" or path.startswith("docs/"):
            return match[0]
        return f"[{text}]({repository.rstrip('/')}/{path})" if repository else text
    return replace


def adapt(app, page, source):
    text, pieces, at = source[0], [], 0

    def prose(part):
        return LINK.sub(outside(page, app.config.source_repository), CALLOUT.sub(callout, part))

    for match in FENCE.finditer(text):
        pieces += [prose(text[at:match.start()]), match[0]]
        at = match.end()
    text = "".join(pieces) + prose(text[at:])
    names = app.env.found_docs
    if page == "index":
        text += "\n" + "\n".join(contents(folder, title, text, names) for title, folder in SECTIONS)
    if page == "reference/api/index":
        text += "\n" + contents("reference/api", "",
                                re.sub(r"\]\((?=[\w-]+\.md)", "](reference/api/", text),
                                [name for name in names if name != page])
    source[0] = text


def setup(app):
    app.add_config_value("source_repository", "", "env")
    app.connect("source-read", adapt)
