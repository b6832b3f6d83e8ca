"""Stands in for labs_lib.tools.execute where a test is about what is run and not about kernels.

It runs the code cells one after the other in this process and writes what they print below the last one.
"""

import contextlib
import io
import json
import sys
from pathlib import Path


def main(job_path):
    job = json.loads(Path(job_path).read_text())
    book = json.loads(Path(job["source"]).read_text())
    cells = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for cell in cells:
            exec("".join(cell["source"]), names)
            if "parameters" in cell["metadata"].get("tags", []):
                names.update(job["parameters"])
    cells[-1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": printed.getvalue()}]
    Path(job["notebook"]).write_text(json.dumps(book))


if __name__ == "__main__":
    main(sys.argv[1])
