# results/audits/<id>.json: what an attacker finds out about one release, for every distinct release of all methods; and the
# table and figure of all of them. Neither data nor training is needed: an audit runs the mechanism alone.
rule audit:
    input:
        script=SCRIPTS / "audit.py",
        code=lambda wc: PROJECT.code("audit", audited_methods(wc.audit)),
    output:
        f"{RESULTS}/audits/{{audit}}.json",
    log:
        "logs/audit/{audit}.log",
    benchmark:
        f"{RESULTS}/benchmarks/audit/{{audit}}.tsv"
    conda:
        "../../envs/pflpipe.yaml"
    threads: 1
    resources:
        mem_mb=lambda wc, attempt: attempt * 2000,
        runtime=lambda wc, attempt: attempt * 20,
    message:
        "Auditing {wildcards.audit}"
    shell:
        "python {input.script} --audit {wildcards.audit} --out {output:q} > {log} 2>&1"


rule audit_table:
    input:
        script=SCRIPTS / "audit_table.py",
        code=PROJECT.code("audit_table", methods.NAMES),
        audits=[AUDIT.format(audit=name) for name in audits.cases()],
    output:
        csv=report(
            f"{RESULTS}/tables/audit.csv",
            caption="../report/audit.rst",
            category="privacy",
            labels={"what": "audit, one row per method and trust model"},
        ),
        md=f"{RESULTS}/tables/audit.md",
        png=report(
            f"{RESULTS}/figures/audit.png",
            caption="../report/audit.rst",
            category="privacy",
            labels={"what": "figure: claims against audited lower bounds"},
        ),
        svg=f"{RESULTS}/figures/audit.svg",
    log:
        "logs/audit_table.log",
    conda:
        "../../envs/pflpipe.yaml"
    params:
        results=lambda wc: RESULTS,
    message:
        "Table of audits"
    shell:
        "python {input.script} --results {params.results:q} --out {output.csv:q} > {log} 2>&1"
