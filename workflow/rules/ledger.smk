# results/ledger.html: what every method of the studies of config.yaml publishes, what is true, and what the truth costs.
rule ledger:
    input:
        script=SCRIPTS / "ledger.py",
        code=PROJECT.code("ledger", methods.NAMES),
        template=ROOT / "workflow" / "report" / "ledger.html",
        tables=[f"{RESULTS}/tables/{study}.csv" for study in SETTINGS.studies],
        audit=f"{RESULTS}/tables/audit.csv",
    output:
        report(
            f"{RESULTS}/ledger.html",
            caption="../report/ledger.rst",
            category="privacy",
            labels={"what": "ledger: what is published, what is true, what it costs"},
        ),
    log:
        "logs/ledger.log",
    conda:
        "../../envs/pflpipe.yaml"
    message:
        "Ledger of {input.tables}"
    shell:
        "python {input.script} --tables {input.tables:q} --audit {input.audit:q} --template {input.template:q} --out {output:q}"
        " > {log} 2>&1"
