"""What a cell does to the files that sandboxd and a kernel share, which nothing keeps from it."""

from __future__ import annotations

import os
import stat

import pytest
from sandboxd.protocol import Finished, KernelGone

LANGUAGES = {
    # says something, runs a script of the shell, ends the kernel
    "python": ("print('on')", "import subprocess; subprocess.run({!r}, shell=True)", "import os; os._exit(3)"),
    "node": ("console.log('on')", "require('child_process').execSync({!r}); void 0", "process.exit(3)"),
}

HARM = {
    "removed": "rm -rf k1",
    "a file": "rm -rf k1; touch k1",
    "a link": "mv k1 k1-; ln -s /nowhere k1",
    "forbidden": "chmod 0 k1",
    "a connection file of somebody": "echo junk >k1/c.json",
    "the next ones are folders": "mkdir k2 k3",
    "the next ones are links": "ln -s /nowhere k2; ln -s . k3",
    "the folder around it is forbidden": "chmod 0 .",
}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
async def test_a_kernel_outlives_what_a_cell_does_to_its_files_and_the_next_one_starts(sandbox, language, harm):
    say, shell, end = LANGUAGES[language]

    async def run(code, **options):
        return await sandbox.run(code, language=language, **options)

    outcome = await run(shell.format(f"cd {sandbox.root}; {harm}"))
    assert (outcome.status, outcome.kernel) == ("ok", "new")
    outcome = await run(say)
    assert (outcome.status, outcome.kernel, outcome.stdout, outcome.stderr) == ("ok", "kept", "on\n", "")
    outcome = await run(end)
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("died", 3, "lost")
    for context in ("default", "another"):
        outcome = await run(say, context=context)
        assert (outcome.status, outcome.kernel, outcome.stdout, outcome.stderr) == ("ok", "new", "on\n", "")
    assert stat.S_IMODE(os.stat(sandbox.root).st_mode) & 0o700 == 0o700


@pytest.mark.parametrize("language", LANGUAGES)
async def test_a_kernel_whose_folder_is_gone_is_still_interrupted_and_ended(sandbox, language):
    _, shell, _ = LANGUAGES[language]
    await sandbox.run(shell.format(f"rm -rf {sandbox.root}/k1"), language=language)
    busy = {"python": "while True: pass", "node": "while (true) {}"}[language]
    outcome = await sandbox.run(busy, language=language, timeout_s=0.3)
    assert (outcome.status, outcome.exit_code, outcome.kernel) == ("timeout", 124, "kept")
    assert not sandbox.told(KernelGone)
    finished = await sandbox.execute("1", language=language)
    assert isinstance(finished, Finished)
    assert finished.outcome.kernel == "kept"
