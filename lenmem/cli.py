"""The command line (being built): `lenmem reproduce CONFIG --rows ROW ...`."""

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser("lenmem")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("reproduce")
    verb.add_argument("config")
    verb.add_argument("--rows", nargs="+", required=True)
    arguments = parser.parse_args()
    from lenmem.configs import module_of
    from lenmem.reproduce import reproduce

    rows = module_of(arguments.config).rows
    for name in arguments.rows:
        record = reproduce(
            arguments.config.split("/")[0],
            name,
            rows[name],
            results=Path("results"),
            runs=Path("runs"),
            report=lambda e: e["step"] % 500 == 0 and print(e["step"], e["loss"], e["seconds"], flush=True),
        )
        print(name, record["measured"], flush=True)
