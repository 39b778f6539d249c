#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check.py SCHEMAS: checks the manifests of this folder against the published JSON schemas.

SCHEMAS is a folder with files like daemonset-apps-v1.json, best of the strict kind, which refuses
fields that it does not know. Each thing that is wrong is a line, and then the exit code is 1."""

import json
import pathlib
import sys

import jsonschema
import yaml


def validator(folder, manifest):
    """The schema of one manifest. What it refers to, by a URL too, is a file in the same folder."""
    group, _, version = manifest["apiVersion"].rpartition("/")
    names = [manifest["kind"], group.split(".")[0], version] if group else [manifest["kind"], version]
    path = folder / ("-".join(names).lower() + ".json")
    if not path.is_file():
        sys.exit(f"check-kubernetes: {path}: no such schema: is SCHEMAS the folder of one release?")
    schema = json.loads(path.read_text())

    def load(url):
        return json.loads((folder / url.split("#")[0].rpartition("/")[2]).read_text())

    handlers = {"https": load, "http": load}
    resolver = jsonschema.RefResolver(folder.resolve().as_uri() + "/", schema, handlers=handlers)
    return jsonschema.Draft7Validator(schema, resolver=resolver)


def main():
    if len(sys.argv) != 2 or not sys.argv[1] or not pathlib.Path(sys.argv[1]).is_dir():
        sys.exit("check-kubernetes: SCHEMAS=FOLDER has to name a folder of JSON schemas of Kubernetes")
    folder, count, wrong = pathlib.Path(sys.argv[1]), 0, 0
    for path in sorted(pathlib.Path(__file__).parent.glob("*.yml")):
        for manifest in yaml.safe_load_all(path.read_text()):
            count += 1
            for error in validator(folder, manifest).iter_errors(manifest):
                wrong += 1
                at = ".".join(str(p) for p in error.absolute_path)
                print(f"check-kubernetes: {path}: {manifest['kind']}: {at}: {error.message[:200]}")
    print(f"check-kubernetes: {count} manifests, {wrong} wrong")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
