#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""man.py OUT VERSION DATE SHARD.H SHARDD SHARDCTL SHARDD.CONF, or --list: the manual, from what there is already: section 3 from the declarations
and comments of shard.h, shardd(8), shardctl(1) and shardd.conf(5) from what the programs say to --help. Called by deploy/man.mk. Fails
if a function of shard.h is on no page, or a page names one that is not there. Why not help2man: it knows neither commands of commands
nor tables of options of a file."""
import os
import re
import subprocess
import sys
import textwrap

# A page per concept: its functions, the types it shows, one line, and an introduction.
PAGES = [
    ("shard_connect", "connect disconnect fd progress interrupt", "shard_connect_opts", "a connection to the daemon of this node", ""),
    ("shard_error", "error name version", "shard_status", "statuses and their texts", ""),
    ("shard_define", "define attach detach drop set", "shard_spec shard_tensor shard_group shard_dtype",
     "models: made once, they outlive every trainer", ""),
    ("shard_tensors", "tensors tensor_info find", "shard_info", "the tensors of a model", ""),
    ("shard_write", "write seal read", "shard_kind shard_dtype", "write initial weights, read weights and optimizer state", ""),
    ("shard_save", "save restore", "", "checkpoints", ""),
    ("shard_join", "join world_get leave samples", "shard_world", "the world of a model: who trains with whom", ""),
    ("shard_step", "begin grad push push_none commit vote_skip abandon result", "shard_begin_opts shard_step shard_result",
     "one step: begin, push, commit, result", ""),
    ("shard_pull", "image pull wait test", "", "parameters of a step, and waiting for tickets", ""),
    ("shard_blob", "set_blob blob", "", "bytes of a trainer that are committed with its step", ""),
    ("shard_region", "region", "", "the memory that gradients and image lie in", ""),
    ("shard_stats", "stats", "", "what the daemon counts", ""),
]
STATUS = set()  # names without SHARD_
FUNCTIONS = {}  # name: Function


def esc(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def rich(text):
    """Statuses and functions in bold, functions with the section they are in."""
    def one(m):
        word = m.group(0)
        name = word.removesuffix("()")
        if name in FUNCTIONS:
            return "\x01" + name + "\x02(3)"
        if name.removeprefix("SHARD_") in STATUS:
            return "\x01SHARD_" + name.removeprefix("SHARD_") + "\x02"
        return word
    text = re.sub(r"\b(?:shard_[a-z_]+(?:\(\))?|(?:SHARD_)?[A-Z]{2}[A-Z_]*)(?![A-Za-z0-9_=])", one, text)
    return esc(text).replace("\x01", "\\fB").replace("\x02", "\\fR")


def comment_text(text):
    """Of a comment: without its stars, on one line, ended like a sentence."""
    text = re.sub(r"\s*\n\s*\*? ?", " ", text).strip()
    return text if not text or text[-1] in ".:!?" else text + "."


class Function:
    def __init__(self, declaration, comment):
        declaration = " ".join(declaration.split())
        self.name = re.search(r"(shard_[a-z_]+)\(", declaration).group(1)
        self.returns, self.arguments = re.match(r"(.*?)shard_[a-z_]+\((.*)\)$", declaration).groups()
        marks = re.match(r"\[(any|one)([^\]]*)\] ?", comment)
        self.marks = marks.group(0).strip() if marks else ""
        self.text = comment_text(comment[marks.end() if marks else 0:])

    def synopsis(self):
        args = [re.sub(r"(\w+)$", r"\\fI\1\\fB", a) if re.search(r"[ *]\w+$", a) and not re.match(r"(enum|struct) \w+$", a) else a
                for a in map(esc, self.arguments.split(", "))]
        lines, line = [], "\\fB" + esc(self.returns) + self.name + "("
        for i, a in enumerate(args):
            last = i == len(args) - 1
            if len(re.sub(r"\\f.|\\", "", line + a)) > 74:
                lines.append(line.rstrip())
                line = "    "
            line += a + (");\\fR" if last else ", ")
        return "\n".join(lines + [line])


def parse_header(path):
    text = open(path, encoding="ascii").read()
    intro = re.search(r"\n/\* shard\.h: (.*?)\*/\n", text, re.S).group(1)
    status = re.search(r"enum shard_status \{.*?\};", text, re.S).group(0)
    STATUS.update(re.findall(r"\bSHARD_([A-Z_]+)\b", re.sub(r"/\*.*?\*/", "", status, flags=re.S)))
    for m in re.finditer(r"^SHARD_(?:CALL|API) ([^;]*?);(?:\s*/\*(?! ---)(.*?)\*/|\n\s+\*(.*?)\*/)?", text, re.S | re.M):
        f = Function(m.group(1), (m.group(2) or m.group(3) or "").strip())
        FUNCTIONS[f.name] = f
    types = {m.group(1): m.group(0) for m in re.finditer(r"^(?:struct|enum) (shard_[a-z_]+) \{.*?\};[^\n]*", text, re.S | re.M)}
    step = re.search(r"/\* --- (step: .*?) --- \*/", text, re.S).group(1)
    return comment_text(intro), types, comment_text(step)


def page(out, name, section, title, what, body, names=None):
    names = names or [name]
    head = '.\\" SPDX-License-Identifier: Apache-2.0\n.\\" made by deploy/man.py\n.TH %s %d "%s" "%s" "%s"\n' % (
        name.upper(), section, DATE, "shardd " + VERSION, title)
    folder = os.path.join(out, "man%d" % section)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "%s.%d" % (name, section)), "w", encoding="ascii") as f:
        f.write(head + ".SH NAME\n" + ", ".join(map(esc, names)) + " \\- " + esc(what) + "\n" + body)
    for other in names:
        if other != name:
            with open(os.path.join(folder, "%s.%d" % (other, section)), "w", encoding="ascii") as f:
                f.write(".so man%d/%s.%d\n" % (section, name, section))


def see(names, section=3):
    return ".SH SEE ALSO\n" + ",\n".join(".BR %s (%s)" % (esc(n), s) for n, s in names).replace("),\n", ") ,\n") + "\n"


def code(text):
    lines = [w for l in text.expandtabs(4).splitlines()
             for w in textwrap.wrap(l.strip(), 78, subsequent_indent=" " * 8, initial_indent=re.match(" *", l).group(0), break_on_hyphens=False) or [""]]
    return ".nf\n" + esc("\n".join(lines)).rstrip() + "\n.fi\n"


def section3(out, header):
    intro, types, step = parse_header(header)
    seen = set()
    every = [p[0] for p in PAGES]
    for name, functions, shown, what, _ in PAGES:
        names = ["shard_" + f for f in functions.split()]
        seen.update(names)
        missing = [n for n in names if n not in FUNCTIONS]
        if missing:
            sys.exit("man.py: %s: not in shard.h: %s" % (name, " ".join(missing)))
        body = ".SH SYNOPSIS\n.nf\n.B #include <shard.h>\n.PP\n" + "\n".join(FUNCTIONS[n].synopsis() for n in names) + "\n.fi\n"
        body += ".SH DESCRIPTION\n"
        if name == "shard_step":
            body += rich(step.replace("step: begin", "Begin", 1)) + "\n"
        for n in names:
            f = FUNCTIONS[n]
            body += ".TP\n.BR %s ()\n%s\n" % (n, rich(f.text or what.capitalize() + "."))
        if shown:
            body += ".SH TYPES\n" + ".PP\n".join(code(types[t]) for t in shown.split())
        returns = [n for n in names if "enum shard_status" in FUNCTIONS[n].returns]
        if returns:
            body += (".SH RETURN VALUE\n\\fBSHARD_OK\\fR or another status; below 20: normal life, go on; from 60 on: the handle is dead.\n"
                     "After a failure \\fBshard_error\\fR(3) has a sentence with the reason.\n"
                     "\\fBshard\\fR(3) lists what every function may return.\n")
        body += ".SH THREADS\n" + "".join(
            ".TP\n.BR %s ()\n%s\n" % (n, {"a": "any thread, concurrently", "o": "one thread at a time per handle"}.get(
                FUNCTIONS[n].marks[1:2], "ends a handle: no other call on it may overlap") +
                (", and in a signal handler" if "signal" in FUNCTIONS[n].marks else "") + ".") for n in names)
        others = [("shard", 3)] + [(n, 3) for n in every if n != name] + [("shardd", 8)]
        page(out, name, 3, "libshard", what, body + see(others), sorted(set(names) | {name}, key=lambda n: (n != name, names.index(n) if n in names else 0)))
    lost = set(FUNCTIONS) - seen
    if lost:
        sys.exit("man.py: on no page: %s" % " ".join(sorted(lost)))
    body = ".SH SYNOPSIS\n.nf\n.B #include <shard.h>\n.PP\ncc \\-o trainer trainer.c $(pkg\\-config \\-\\-cflags \\-\\-libs libshard)\n.fi\n"
    body += ".SH DESCRIPTION\n" + rich(intro[0].upper() + intro[1:]) + "\n.SH PAGES\n"
    for name, functions, _, what, _ in PAGES:
        body += ".TP\n.BR %s (3)\n%s: %s.\n" % (name, esc(what), ", ".join("\\fBshard_%s\\fR" % f for f in functions.split()))
    page(out, "shard", 3, "libshard", "push gradients to, and pull parameters from, the shardd on this node", body +
         ".SH STATUSES\n" + code(types["shard_status"]) + see([(n, 3) for n in every] + [("shardd", 8), ("shardctl", 1)]))


# --- what programs say to --help ---

def help_of(program, *words):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SHARD_", "ARGP_"))}
    env["ARGP_HELP_FMT"] = "rmargin=200"
    run = subprocess.run([program, *words, "--help"], capture_output=True, text=True, env=env, check=False)
    if run.returncode != 0:
        sys.exit("man.py: %s --help: status %d: %s" % (" ".join([program, *words]), run.returncode, run.stderr.strip()))
    return run.stdout.splitlines()


def options(lines):
    """The (option, text) pairs at the start of lines."""
    found = []
    for line in lines:
        m = re.match(r"^ {2,6}(-\S.*?)(?: {2,}(.*))?$", line)
        if m:
            found.append([m.group(1), m.group(2) or ""])
        elif found and line.startswith(" " * 8):
            found[-1][1] = (found[-1][1] + " " + line.strip()).strip()
        elif found and line.strip():
            break
    return found


def sentence(text):
    """With a capital, unless it starts with a name or a list of them."""
    return esc((text[0].upper() if re.match("[a-z]+( |$)", text) else text[:1]) + text[1:].rstrip(".")) + "."


def option_list(pairs):
    return "".join(".TP\n.B %s\n%s\n" % (esc(o), sentence(t)) for o, t in pairs)


def after(lines, start):
    at = next((i for i, l in enumerate(lines) if l.startswith(start)), None)
    if at is None:
        sys.exit("man.py: --help does not say %r" % start)
    return lines[at:]


def exit_status(lines):
    text = " ".join(l.strip() for l in after(lines, "Exit status:") if l.strip())
    body = ".SH EXIT STATUS\n"
    for number, what in re.findall(r"(\d+) ([^,.]+)", text):
        body += ".TP\n.B %s\n%s.\n" % (number, esc(what.capitalize()))
    return body


def described(lines):
    """The description between usage and the first blank line behind it."""
    text = []
    for line in lines[1:]:
        if not line.strip() and text:
            break
        if line.strip() and not line.startswith(" "):
            text.append(line.strip())
    return esc("\n".join(text)) + "\n"


def table(lines):
    """[section] -> [(key, text)] of the file's options; keys are padded to 24 columns, longer texts go on below."""
    sections = []
    for line in lines:
        if line.startswith("["):
            sections.append((line.strip(), []))
        elif line.startswith("Exit status"):
            break
        elif sections and re.match(r"  \S", line):
            sections[-1][1].append([line[2:26].strip(), line[26:].strip()])
        elif sections and line.strip():
            sections[-1][1][-1][1] += " " + line.strip()
    return sections


def section58(out, shardd, conf):
    lines = help_of(shardd)
    body = ".SH SYNOPSIS\n.B shardd\n.RI [ OPTION ...]\n.SH DESCRIPTION\n" + described(lines)
    body += (".PP\nOne runs on each node. It stays in the foreground and logs lines of key=value to standard error.\nSIGTERM stops it: trainers are told, and it ends with status 0.\n.SH OPTIONS\n" + option_list(options(lines)))
    said = after(lines, "Options of the configuration file")
    intro = []
    for line in said:
        if not line.strip():
            break
        intro.append(line.strip())
    body += ".SH CONFIGURATION\n" + esc("\n".join(intro)) + "\n.BR shardd.conf (5)\nlists them.\n"
    body += ".SH FILES\n.TP\n.I /etc/shardd/shardd.conf\nThe configuration, if there is one.\n.TP\n.I /run/shardd/shardd.sock\nWhere trainers connect.\n"
    body += ".TP\n.I /var/lib/shardd\nIdentity, incarnation and views of this node.\n" + exit_status(lines)
    page(out, "shardd", 8, "shardd", "holds a training job's weights and optimizer state", body +
         see([("shardd.conf", 5), ("shardctl", 1), ("shard", 3)]))
    body = (".SH DESCRIPTION\nRead by\n.BR shardd (8)\nas\n.I /etc/shardd/shardd.conf\nor what \\-\\-config names.\n" +
            "Lines are key = value in sections; a semicolon starts a comment.\nUnits are required where a unit exists: 64GiB, 30s, 300us.\n"
            "Unknown keys, sections and values are errors with file and line;\n.B shardctl config check\nfinds them without starting anything.\n.PP\n" +
            esc("\n".join(intro)) + "\n")
    keys = 0
    for name, rows in table(said):
        body += ".SH %s\n" % esc(name).replace('"', "\\(dq")
        for key, text in rows:
            body += ".TP\n.B %s\n%s\n" % (esc(key), sentence(text))
            keys += 1
    if keys < 40:
        sys.exit("man.py: only %d keys in what shardd --help says of its file" % keys)
    example = [l for l in open(conf, encoding="ascii").read().splitlines() if "SPDX" not in l]
    body += ".SH EXAMPLE\n" + code("\n".join(example))
    page(out, "shardd.conf", 5, "shardd", "configuration of shardd", body + see([("shardd", 8), ("shardctl", 1)]))


def section1(out, shardctl):
    lines = help_of(shardctl)
    body = ".SH SYNOPSIS\n.B shardctl\n.RI [ OPTION \" ...] \" COMMAND \" [\" WORD \" ...]\"\n.SH DESCRIPTION\n" + described(lines)
    body += ".SH OPTIONS\nOf all commands:\n" + option_list(options(lines)) + ".SH COMMANDS\n"
    shown, rows = None, after(lines, "Commands")[1:]
    column = re.match(r"  \S+ +", rows[0]).end()
    for line in rows:
        if not re.match(r"  \S", line):
            break
        command = line[2:column].strip()
        body += ".SS %s\n%s.\n" % (esc(command), esc(line[column:]))
        words = re.match(r"[a-z]+(?: [a-z]+)*", command).group(0).split()
        own = help_of(shardctl, *words)
        own = own[:next((i for i, l in enumerate(own) if "Options of all commands" in l), len(own))]
        pairs = options(own)
        if pairs and pairs != shown:
            body += option_list(pairs)
            shown = pairs
    body += (".SH ENVIRONMENT\n.TP\n.B SHARD_ADDRESS\nWhere the daemon is, unless \\-\\-address says it.\n" + exit_status(lines))
    page(out, "shardctl", 1, "shardd", "look at shardd, plan for it, and act on it", body + see([("shardd", 8), ("shardd.conf", 5), ("shard", 3)]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:  # what there will be, below share/man
        print("\n".join(["man1/shardctl.1", "man5/shardd.conf.5", "man8/shardd.8", "man3/shard.3"] + sorted(
            "man3/%s.3" % n for n in {p[0] for p in PAGES} | {"shard_" + f for p in PAGES for f in p[1].split()})))
        sys.exit()
    OUT, VERSION, DATE = sys.argv[1:4]
    section3(OUT, sys.argv[4])
    section58(OUT, sys.argv[5], sys.argv[7])
    section1(OUT, sys.argv[6])
