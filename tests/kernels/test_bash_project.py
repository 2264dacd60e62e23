"""A session as an agent has it: a small C project, built, run, mended and served by background jobs over several calls."""

from __future__ import annotations

import shutil

import pytest

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None or shutil.which("make") is None, reason="no gcc and make here"
)

SOURCES = r"""
set -euo pipefail
mkdir -p project/src && cd project
cat >src/count.h <<'C'
long count(const char *text, char wanted);
C
cat >src/count.c <<'C'
#include "count.h"
long count(const char *text, char wanted) {
    long found = 0;
    for (; *text; text++)
        if (*text == wanted) found++;
    return found
}
C
cat >src/main.c <<'C'
#include <stdio.h>
#include "count.h"
int main(int argc, char **argv) {
    char line[4096];
    long sum = 0;
    while (fgets(line, sizeof line, stdin)) sum += count(line, argc > 1 ? argv[1][0] : 'a');
    printf("%ld\n", sum);
    return sum == 0;
}
C
printf '%b\n' >Makefile \
    'CFLAGS = -Wall -O1' \
    'program: src/main.o src/count.o\n\t$(CC) -o $@ $^' \
    'src/%.o: src/count.h' \
    'clean:\n\trm -f program src/*.o'
files=(src/*.c)
build() { make "$@" 2>&1 | tee build.log; }
echo "${#files[@]} files"
"""


async def test_a_project_in_c(sandbox):
    async def bash(code, **options):
        return await sandbox.run(code, language="bash", **options)

    outcome = await bash(SOURCES)
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == ("2 files\n", "", 0)

    failed = await bash("build")  # the directory, the function and pipefail are those of the call before
    assert (failed.status, failed.exit_code) == ("error", 2)
    assert "src/count.c:6:" in failed.stdout

    outcome = await bash("sed -i 's/return found$/return found;/' src/count.c && build --silent && ls program")
    assert (outcome.stdout, outcome.exit_code) == ("program\n", 0)

    outcome = await bash("./program a", stdin="banana\nananas\n")
    assert (outcome.stdout, outcome.exit_code) == ("6\n", 0)
    assert (await bash("./program z", stdin="banana\n")).exit_code == 1

    # Background jobs, started in one call and waited for or spoken to in later ones.
    outcome = await bash(
        'mkfifo in out; (while read -r word <in; do echo "$word" | ./program n >out || true; done) & server=$!\n'
        'for file in "${files[@]}"; do ./program c <$file >${file##*/}.n & jobs+=($!); done; echo started'
    )
    assert (outcome.stdout, outcome.exit_code) == ("started\n", 0)
    counted = await bash('wait "${jobs[@]}"; cat *.n; for file in "${files[@]}"; do tr -cd c <$file | wc -c; done')
    assert counted.stdout.split()[:2] == counted.stdout.split()[2:] != []
    assert (await bash('echo banana >in; read -r n <out; echo "n: $n"; jobs -pr | wc -l')).stdout == "n: 2\n1\n"

    outcome = await bash("while :; do ./program x </dev/zero; done", timeout_s=0.5)
    assert (outcome.status, outcome.kernel) == ("timeout", "kept")

    outcome = await bash("kill $server; wait $server; echo $?; build clean; ls; echo ${#files[@]}")
    assert outcome.stdout.splitlines()[0] == "143"
    assert "program" not in outcome.stdout.splitlines()
    assert outcome.stdout.splitlines()[-1] == "2"
    assert outcome.kernel == "kept"
