"""embed.py OUT HEADER...: writes the headers as strings, without includes that kernels lack."""
import pathlib
import sys

out, *headers = sys.argv[1:]
text = ""
for header in map(pathlib.Path, headers):
    lines = [line for line in header.read_text().splitlines()
             if not line.startswith(("#include", "#pragma once"))]
    text += f'const char {header.stem}_h[] = R"text(' + "\n".join(lines) + '\n)text";\n'
pathlib.Path(out).write_text(text)
