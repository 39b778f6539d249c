#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""man.py OUT VERSION DATE SHARDD SHARDCTL SHARDD.CONF HEADER..., or --list HEADER...: the manual, from what there is already. HEADER is
shard.h, and shard_cuda.h where that library is built. Section 3 comes from the comment blocks of the headers: shard(3) and shard_cuda(3),
one page per function, and one name per struct, which leads to the page of the function that takes it. shardd(8), shardctl(1) and
shardd.conf(5) come from what the programs say to --help, from deploy/events.txt, and from the table of paths in daemon/obs/README.md.
Called by deploy/man.mk. Fails where a block of a header lacks a section, an
argument or a type, names a status that is not there, runs two items together, or has a line that clang-format broke. Why not help2man: it knows neither commands of commands
nor tables of options of a file.

A block of a header begins with "NAME - what", or with the name of a group in capitals. Its headings are lines in capitals. "KEY: text",
with further lines indented by two, is an item; lines that begin with a tab are code; the rest is paragraphs. "Also the errors of X, and
of Y." stands for the items under ERRORS OF X and ERRORS OF Y. A function without an EXAMPLE shows that of its group."""
import os
import re
import subprocess
import sys
import textwrap


def esc(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


class Block:
    """A comment: its sections, each a list of lines, and the declaration behind it."""
    def __init__(self, comment, declaration):
        odd = re.search(r"^ \*[^ \t\n].*", comment, re.M)
        if odd:
            sys.exit("man.py: a line of a block has no blank behind its star, as clang-format leaves one that is too long: %s" % odd.group(0))
        lines = [line[3:] if line.startswith(" * ") else line[2:] for line in comment.splitlines()]
        self.title, self.sections, heading = lines[0], {}, "DESCRIPTION"
        for line in lines[1:]:
            if re.fullmatch("[A-Z]+( [A-Z]+)*", line):
                heading = line
            else:
                self.sections.setdefault(heading, []).append(line)
        self.group, self.example = None, None
        self.declaration = " ".join(declaration.split())

    def name(self):
        return self.title.split(" - ")[0]

    def what(self):
        return self.title.split(" - ")[1]

    def text(self):
        return "\n".join(line for lines in self.sections.values() for line in lines if not line.startswith("\t"))


class Type:
    """A struct or enum: (declaration of a field or value, its comment) each."""
    def __init__(self, what, intro, body):
        self.what, self.intro, self.members = what, intro, []
        for m in re.finditer(r"\t/\*(.*?)\*/\n\t([^\n]*)", body, re.S):
            self.members.append((m.group(2).rstrip(",;").split(" = ")[0], " ".join(re.sub(r"\n\t \*", " ", m.group(1)).split())))
        lines = [line for line in re.sub(r"/\*.*?\*/", "", body, flags=re.S).splitlines() if line.strip()]
        if len(lines) != len(self.members):
            sys.exit("man.py: %s: %d fields, %d comments: one each" % (what, len(lines), len(self.members)))

    def render(self, manual):
        return ".SS %s\n%s\n" % ("Flags" if self.what == "enum" else esc(self.what), manual.rich(self.intro)) + "".join(
            ".TP\n.B %s\n%s\n" % (esc(member), manual.rich(text)) for member, text in self.members)


class Manual:
    """What a header says. base: the manual of shard.h, whose functions and statuses a second header may name."""
    def __init__(self, path, base=None):
        text = open(path, encoding="ascii").read()
        self.header, self.name = os.path.basename(path), os.path.basename(path)[:-2]
        self.library, self.base = "lib" + self.name.replace("_", "-"), base
        self.types = [Type(m.group(2).strip(), m.group(1), m.group(3)) for m in re.finditer(
            r"^/\* ([^\n]*) \*/\n((?:struct|enum) ?\w*) \{\n(.*?)^\};", text, re.S | re.M)]
        self.status = base.status if base else {t.what: t for t in self.types}["enum shard_status"]
        self.library_block, self.groups, self.functions = None, [], {}
        for m in re.finditer(r"^/\*\n((?: \*[^/\n]?[^\n]*\n)+?) \*/\n((?:SHARD_(?:CALL|API)[^;]*;)?)", text, re.S | re.M):
            b = Block(m.group(1), m.group(2))
            if b.title.startswith(self.name + " - "):
                self.library_block = b
            elif b.declaration:
                b.group = self.groups[-1]
                b.group.members.append(b)
                self.functions[b.name()] = b
                self.check(b)
            else:
                b.members = []
                self.groups.append(b)
        self.known = {**self.functions, **(base.functions if base else {})}
        self.links = self.named_types()

    def check(self, b):
        declared = re.search(r"(shard_\w+)\(", b.declaration).group(1)
        arguments = [a for a in self.arguments(b) if a != "void"]
        names = [re.search(r"(\w+)$", a).group(1) for a in arguments]
        items = re.findall(r"^(\w+): ", "\n".join(b.sections.get("ARGUMENTS", [])), re.M)
        wrong = [w for w in re.findall(r"^(SHARD_\w+): ", "\n".join(b.sections.get("ERRORS", [])), re.M)
                 if w not in [name for name, _ in self.status.members]]
        if declared != b.name() or items != names:
            sys.exit("man.py: %s: the block is of %s and describes %s, the declaration has %s" % (declared, b.name(), items, names))
        if wrong:
            sys.exit("man.py: %s: no such status: %s" % (declared, " ".join(wrong)))
        for heading in ("DESCRIPTION", "ERRORS", "THREADS"):
            if heading not in b.sections:
                sys.exit("man.py: %s: no %s" % (declared, heading))
        joined = re.search(r"^.*\S SHARD_\w+: .*|^SHARD_\w+: .*(?:\n  .*)*\n[a-z].*", "\n".join(b.sections["ERRORS"]), re.M)
        if joined:
            sys.exit("man.py: %s: ERRORS: two items in one, or a line that is not indented:\n%s" % (declared, joined.group(0)))

    @staticmethod
    def arguments(b):
        return re.search(r"shard_\w+\((.*)\);", b.declaration).group(1).split(", ")

    def rich(self, text, own=None):
        """Statuses, functions and what stands between backquotes."""
        def one(m):
            word = m.group(0)
            if word[0] == "`":
                return "\x03" + word[1:-1] + "\x02"
            if word.startswith("SHARD_"):
                return "\x01" + word + "\x02"
            name = word[:-2]
            return "\x01" + name + ("\x02()" if name == own or name not in self.known else "\x02(3)")
        text = re.sub(r"`[^`]+`|\bshard_\w+\(\)|(?<![$\w])SHARD_\w+", one, text)
        return esc(text).replace("\x01", "\\fB").replace("\x02", "\\fR").replace("\x03", "\\fI")

    def shared(self, sentence):
        """The items of ERRORS OF A CONNECTION and so on that a sentence names."""
        items = {}
        for what in re.findall(r"of a [a-z ]+", sentence):
            for status, text in re.findall(r"^(SHARD_\w+): (.*(?:\n  .*)*)", "\n".join(self.library_block.sections["ERRORS " + what.strip().upper()]), re.M):
                items[status] = text
        return items

    def prose(self, lines, own=None):
        body = ""
        for part in re.split(r"\n{2,}", "\n".join(lines).strip("\n")):
            body += (".PP\n" if body else "") + self.rich(" ".join(part.split()), own) + "\n"
        return body

    def item(self, key, text, own, names):
        """With a capital, unless it begins with the name of an argument or of ours."""
        text = " ".join(text.split())
        first = re.match(r"\w+", text)
        if first and first.group(0) not in names and not first.group(0).startswith("shard"):
            text = text[0].upper() + text[1:]
        return ".TP\n.B %s\n%s\n" % (esc(key), self.rich(text, own))

    def items(self, lines, own=None, names=()):
        """Items, paragraphs between them, and what "Also the errors of" stands for, as far as it is not there yet."""
        body, said = "", {}
        for part in re.split(r"\n(?! )", "\n".join(lines)):
            key, _, text = part.partition(": ")
            if re.fullmatch(r"\w+", key) and text:
                said[key] = " ".join(text.split())
                body += self.item(key, text, own, names)
            elif part.startswith("Also the errors"):
                part, _, rest = part.partition(".")
                for status, text in self.shared(part).items():
                    if not said.get(status, "as below.").endswith("as below."):
                        continue
                    body += self.item(status, text, own, names)
                if rest:
                    body += ".PP\n" + self.rich(rest.strip(), own) + "\n"
            elif part:
                body += (".PP\n" if body else "") + self.rich(part, own) + "\n"
        return body

    def synopsis(self, b):
        returns, arguments = re.match(r"SHARD_(?:CALL|API) (.*?)shard_\w+\(", b.declaration).group(1), self.arguments(b)
        args = [re.sub(r"(\w+)$", r"\\fI\1\\fB", a) if a != "void" else a for a in map(esc, arguments)]
        lines, line = [], "\\fB" + esc(returns) + b.name() + "("
        for i, a in enumerate(args):
            if len(re.sub(r"\\f.|\\", "", line + a)) > 74:
                lines.append(line.rstrip())
                line = "    "
            line += a + (");\\fR" if i == len(args) - 1 else ", ")
        return ".SH SYNOPSIS\n.nf\n.B #include <%s>\n.PP\n" % self.header + "\n".join(lines + [line]) + "\n.fi\n"

    def shown(self, b):
        """The types that somebody who calls the function needs."""
        found, text = [], b.declaration + b.text()
        for _ in range(3):
            for t in self.types:
                uses = re.search(r"\b%s\b" % t.what, text) if t.what != "enum" else any(re.search(r"\b%s\b" % m, text) for m, _ in t.members)
                if uses and t is not self.status and t not in found:
                    found.append(t)
                    text += " ".join(m + " " + words for m, words in t.members)
        return found

    def named_types(self):
        """struct -> the function whose page describes it: one that takes it, or else one that shows it."""
        links = {}
        for t in self.types:
            kind, _, name = t.what.partition(" ")
            if kind == "struct" and name not in self.functions:
                takes = [f for f in self.functions.values() if re.search(r"\b%s\b" % t.what, f.declaration)]
                takes += [f for f in self.functions.values() if t in self.shown(f)]
                if not takes:
                    sys.exit("man.py: %s: no function takes it or names it" % t.what)
                links[name] = takes[0].name()
        return links

    def pages(self):
        return [self.name, *self.functions, *self.links]

    def example(self, b):
        lines = [line[1:] for line in b.sections["EXAMPLE"] if line.startswith("\t") or not line]
        lines = "\n".join(re.sub("^\t+", lambda m: " " * 4 * len(m.group(0)), line) for line in lines).strip("\n")
        return ".SH EXAMPLE\n.nf\n" + esc(lines) + "\n.fi\n"

    def function(self, out, b):
        own, s = b.name(), b.sections
        names = [re.search(r"\w+$", a).group(0) for a in self.arguments(b)]
        body = self.synopsis(b) + ".SH DESCRIPTION\n" + self.prose(s["DESCRIPTION"], own)
        body += ".SH ARGUMENTS\n" + (self.items(s["ARGUMENTS"], own, names) if "ARGUMENTS" in s else "None.\n")
        types = self.shown(b)
        if types:
            body += ".SH TYPES\n" + "".join(t.render(self) for t in types)
        if "RETURN VALUE" in s:
            body += ".SH RETURN VALUE\n" + self.prose(s["RETURN VALUE"], own)
        elif "enum shard_status shard" in b.declaration:
            body += (".SH RETURN VALUE\n\\fBSHARD_OK\\fR, or a status of the list below. \\fB" + self.name +
                     "_error\\fR(3) then has a sentence with the reason.\nBelow 20 it is normal life, and from 60 on the handle is dead.\n")
        body += ".SH ERRORS\n" + self.items(s["ERRORS"], own, names) + ".SH THREADS\n" + self.prose(s["THREADS"], own)
        others = [f.name() for f in b.group.members if f is not b]
        others += [n for n in dict.fromkeys(re.findall(r"(shard_\w+)\(\)", b.text())) if n in self.known and n != own and n not in others]
        page(out, own, 3, self.library, b.what(), body + self.example(b if "EXAMPLE" in s else b.group) + see([(n, 3) for n in others + [self.name]]))

    def overview(self, out):
        s = self.library_block.sections
        body = ".SH SYNOPSIS\n.nf\n.B #include <%s>\n.PP\n%s\n.fi\n" % (
            self.header, esc("cc -o trainer trainer.c $(pkg-config --cflags --libs %s)" % self.library))
        for heading in s:
            if heading.startswith("ERRORS OF"):
                body += ".SS %s\n" % heading.capitalize() + self.items(s[heading])
            elif heading != "EXAMPLE":
                body += ".SH %s\n" % heading + self.prose(s[heading])
        body += ".SH FUNCTIONS\n"
        for g in self.groups:
            body += ".SS %s\n%s" % (g.title.capitalize(), self.prose(g.sections["DESCRIPTION"]))
            body += "".join(".TP\n.BR %s (3)\n%s\n" % (f.name(), sentence(f.what())) for f in g.members)
        if not self.base:
            body += ".SH STATUSES\n" + "".join(".TP\n.B %s\n%s\n" % (name, self.rich(text)) for name, text in self.status.members)
        others = [("shard", 3)] if self.base else [("shardd", 8), ("shardctl", 1), ("shardd.conf", 5)]
        page(out, self.name, 3, self.library, self.library_block.what(), body + self.example(self.library_block) +
             see([(n, 3) for n in self.functions] + others))


def page(out, name, section, title, what, body):
    head = '.\\" SPDX-License-Identifier: Apache-2.0\n.\\" made by deploy/man.py\n.TH %s %d "%s" "%s" "%s"\n' % (
        name.upper(), section, DATE, "shardd " + VERSION, title)
    folder = os.path.join(out, "man%d" % section)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "%s.%d" % (name, section)), "w", encoding="ascii") as f:
        f.write(head + ".nh\n.ad l\n.SH NAME\n" + esc(name) + " \\- " + esc(what) + "\n" + body)


def see(names):
    return ".SH SEE ALSO\n" + ",\n".join(".BR %s (%s)" % (esc(n), s) for n, s in names).replace("),\n", ") ,\n") + "\n"


def code(text):
    lines = [w for l in text.expandtabs(4).splitlines()
             for w in textwrap.wrap(l.strip(), 78, subsequent_indent=" " * 8, initial_indent=re.match(" *", l).group(0), break_on_hyphens=False) or [""]]
    return ".nf\n" + esc("\n".join(lines)).rstrip() + "\n.fi\n"


def manuals(headers):
    """Of shard.h, which is the first one, and of those that build on it."""
    base = Manual(headers[0])
    return [base] + [Manual(h, base) for h in headers[1:]]


def section3(out, headers):
    for manual in manuals(headers):
        for b in manual.functions.values():
            manual.function(out, b)
        manual.overview(out)
        for name, of in manual.links.items():
            with open(os.path.join(out, "man3", name + ".3"), "w", encoding="ascii") as f:
                f.write(".so man3/%s.3\n" % of)


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


HERE = os.path.dirname(os.path.abspath(__file__))


def tagged(rows):
    """(tag, text) each, with text that is not escaped yet."""
    return "".join(".TP\n.%s %s\n%s\n" % ("I" if tag.startswith("/") else "B", esc(tag), esc(text)) for tag, text in rows)


def paths():
    """What HTTP answers, from the table of daemon/obs/README.md: (path, what)."""
    with open(os.path.join(HERE, "../daemon/obs/README.md"), encoding="utf-8") as f:
        found = re.findall(r"^\| `(/[a-z]*)` \| (.*) \|$", f.read(), re.M)
    if len(found) < 4:
        sys.exit("man.py: daemon/obs/README.md has no table of paths")
    return [(path, (what[0].upper() + what[1:]).replace("`", "").replace(", below", "").rstrip(".") + ".") for path, what in found]


def events():
    """The names of the log's events with their meanings."""
    with open(os.path.join(HERE, "events.txt"), encoding="ascii") as f:
        rows = [line.rstrip("\n").split(None, 1) for line in f]
    return [(name, text[0].upper() + text[1:] + ".") for name, text in rows]


SIGNALS = [
    ("SIGTERM, SIGINT", "The daemon stops. Trainers and other nodes are told, a step that is decided is finished, and it ends with status 0. "
     "With warm_restart the memory of models stays for the next start. A second one ends the process at once, with status 1."),
    ("SIGHUP", "The configuration and the files of keys are read again. What has changed is taken over where the option may change while the "
     "daemon runs (event=reload), and the rest waits for the next start (event=reload_left). If anything is wrong, nothing changes "
     "(event=reload_failed)."),
]
ENVIRONMENT = [
    ("SHARD_KEY", "The option KEY of [daemon], as SHARD_LOG_LEVEL for log_level. It wins over files."),
    ("SHARD_SECTION_KEY", "The option KEY of [net] or [cluster], as SHARD_NET_TRANSPORT for transport."),
    ("CREDENTIALS_DIRECTORY", "Set by systemd. Its files shardd.node_secret and shardd.secret are the keys where no option names others."),
    ("NOTIFY_SOCKET, FDSTORE, LISTEN_FDS, LISTEN_FDNAMES, LISTEN_PID", "Set by systemd: where the daemon says that it is ready and leaves the "
     "memory of models, and what the process before has left."),
    ("JOURNAL_STREAM", "Set by systemd. Lines then go to the journal with a priority and fields, as SHARDD_EVENT."),
]
FILES = [
    ("/etc/shardd/shardd.conf", "The configuration, if there is one."),
    ("/etc/shardd/conf.d/*.conf", "Are read after it, in the order of their names."),
    ("/etc/shardd/node_secret", "The key that nodes must know. It belongs to root, with mode 0600, and systemd hands it to the service."),
    ("/etc/shardd/secret", "The key that trainers and tools over TCP must know, likewise."),
    ("/run/shardd/shardd.sock", "Where trainers connect."),
    ("/var/lib/shardd", "Identity, incarnation, views, definitions and histories of this node. It must not be used by two daemons, nor be put back "
     "from a backup while the node is a member."),
    ("/var/lib/shardd/checkpoints", "Where anybody who may use the socket may save, unless checkpoint_roots says otherwise."),
    ("/dev/shm/shardd-*", "The memory of models that warm_restart = tmpfs keeps for the next start of the node. --forget-memory --list names the "
     "folders, with whose they are."),
]


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
    body += ".SH SIGNALS\n" + tagged(SIGNALS)
    body += ".SH HTTP\nThe daemon answers at [daemon] http, which is 127.0.0.1:29701 by default. Nothing can be changed there.\n" + tagged(paths())
    body += ".SH ENVIRONMENT\n" + tagged(ENVIRONMENT) + ".SH FILES\n" + tagged(FILES)
    body += (".SH EVENTS\nEach line of the log has ts, level, node and event, and further keys of which why is a sentence.\nThese are the events:\n" +
             tagged(events()))
    body += (".SH EXAMPLES\n" + code("shardd --config a.conf --check\nshardd --node a --set daemon.memory=64GiB\nshardd --forget-memory --list\n"
                                      "kill -HUP $(pidof shardd)\njournalctl -u shardd SHARDD_EVENT=lost")) + exit_status(lines)
    page(out, "shardd", 8, "shardd", "holds a training job's weights and optimizer state", body +
         see([("shardd.conf", 5), ("shardctl", 1), ("shard", 3)]))
    body = (".SH DESCRIPTION\nRead by\n.BR shardd (8)\nas\n.I /etc/shardd/shardd.conf\nand after it\n.IR /etc/shardd/conf.d/*.conf ,\nor as what \\-\\-config and \\-\\-config\\-dir name.\n" +
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


EXAMPLES = [
    ("What is going on, and is this machine fit?", "shardctl status\nshardctl top\nsudo shardctl doctor"),
    ("Save while it trains, and look at each byte:", "shardctl save gpt --dir /srv/checkpoints\nshardctl checkpoints /srv/checkpoints --verify"),
    ("Go back to an older checkpoint. Trainers hear of it and go on from there:", "shardctl restore /srv/checkpoints --tag global_step500 --force"),
    ("Begin with weights of Hugging Face, and give them back:",
     "shardctl import hf /srv/checkpoints --name gpt --settings \"optimizer=adamw lr=3e-4\"\n"
     "shardctl restore /srv/checkpoints\nshardctl export /srv/checkpoints /srv/checkpoints/hf --dtype bf16"),
    ("A model diverged:", "shardctl model set gpt lr 1e-4\nshardctl model resume gpt"),
    ("Take a node out for repair:", "sudo shardctl drain c\nshardctl members"),
    ("Change the configuration:", "shardctl config check /etc/shardd/shardd.conf && sudo systemctl reload shardd"),
    ("Ask a node from a machine without a daemon:", "shardctl --address 10.0.0.1:29700 --secret ./secret status"),
]


def section1(out, shardctl):
    lines = help_of(shardctl)
    body = ".SH SYNOPSIS\n.B shardctl\n.RI [ OPTION \" ...] \" COMMAND \" [\" WORD \" ...]\"\n.SH DESCRIPTION\n" + described(lines)
    body += ".SH OPTIONS\nOf all commands:\n" + option_list(options(lines)) + ".SH COMMANDS\n"
    rows = after(lines, "Commands")[1:]
    column = re.match(r"  \S+ +", rows[0]).end()
    for line in rows:
        if not re.match(r"  \S", line):
            break
        command = line[2:column].strip()
        body += ".SS %s\n%s.\n" % (esc(command), esc(line[column:]))
        words = re.match(r"[a-z]+(?: [a-z]+)*", command).group(0).split()
        own = help_of(shardctl, *words)
        blank = own.index("", 1)
        about = own[blank + 1:own.index("", blank + 1)]
        body += ".PP\n" + esc(" ".join(about)) + "\n"
        body += option_list(options(own[:next((i for i, l in enumerate(own) if "Options of all commands" in l), len(own))]))
        body += ".PP\n" + code("\n".join(after(own, "Example:")[1:]))
    body += ".SH ENVIRONMENT\n" + tagged([
        ("SHARD_ADDRESS", "Where the daemon is, unless --address says it."),
        ("SHARD_SECRET", "The file with the key that is [cluster] secret of the nodes, for an address host:port, unless --secret says it."),
        ("SHARD_TLS", "off, psk or a folder with tls.crt, tls.key and ca.crt, as [net] tls of the nodes is, for an address host:port, unless --tls says it."),
        ("SHARD_DAEMON, SHARD_LINGER", "For an address spawn:NAME of shardctl bench: which shardd is started, and how long it stays without a trainer.")])
    body += ".SH EXAMPLES\n" + "".join(esc(what) + "\n" + ".PP\n" + code(text) + ".PP\n" for what, text in EXAMPLES)[:-4] + exit_status(lines)
    page(out, "shardctl", 1, "shardd", "look at shardd, plan for it, and act on it", body + see([("shardd", 8), ("shardd.conf", 5), ("shard", 3)]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--list"]:  # what there will be, below share/man
        names = [n for manual in manuals(sys.argv[2:]) for n in manual.pages()]
        print("\n".join(["man1/shardctl.1", "man5/shardd.conf.5", "man8/shardd.8"] + sorted("man3/%s.3" % n for n in names)))
        sys.exit()
    OUT, VERSION, DATE, SHARDD, SHARDCTL, CONF = sys.argv[1:7]
    section3(OUT, sys.argv[7:])
    section58(OUT, SHARDD, CONF)
    section1(OUT, SHARDCTL)
