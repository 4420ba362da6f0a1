# results/ledger.html: published claims of every method in the studies of config.yaml, epsilons that hold, their cost.
rule ledger:
    input:
        tables=[f"{RESULTS}/tables/{study}.csv" for study in SETTINGS.studies],
        audits=ask(lambda wc: PROJECT.audits_of_methods()),
    output:
        f"{RESULTS}/ledger.html",
    log:
        "logs/ledger.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        code=code(
            "ledger",
            lambda wc: [
                *sorted((ROOT / "workflow/report").iterdir()),
                *PROJECT.method_files(PROJECT.methods()),
            ],
        ),
    message:
        "Ledger of {input.tables}"
    shell:
        script(
            "ledger",
            "--tables {input.tables:q} --results RESULTS"
            ' --template "$PFLPIPE_ROOT/workflow/report/ledger.html" --out {output:q}',
        )
