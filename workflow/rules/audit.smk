from pflpipe.auditing import cases as audits


# results/audits/<id>.json: the result of attacks on one release, for every distinct release of all methods; and their table
# and figure. An audit needs neither data nor training: it runs only the mechanism.
rule audit:
    output:
        f"{RESULTS}/audits/{{audit}}.json",
    log:
        "logs/audit/{audit}.log",
    conda:
        "../../envs/pflpipe.yaml"
    threads: 1
    resources:
        mem_mb=lambda wc, attempt: attempt * 2000,
        runtime=lambda wc, attempt: attempt * 20,
    params:
        code=code("audit", lambda wc: PROJECT.method_files(PROJECT.audited(wc.audit))),
    message:
        "Auditing {wildcards.audit}"
    shell:
        script(
            "audit",
            "--audit {wildcards.audit} --out {output:q}",
            measured="{wildcards.audit}",
        )


rule audit_table:
    input:
        PROJECT.all_audits(),
    output:
        csv=f"{RESULTS}/tables/audit.csv",
        md=f"{RESULTS}/tables/audit.md",
        figures=expand(
            f"{RESULTS}/figures/{{name}}.{{kind}}",
            name=["audit", "audit_column"],
            kind=["png", "svg", "pdf"],
        ),
    log:
        "logs/audit_table.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        code=code(
            "audit_table",
            lambda wc: [
                *PROJECT.style_files(),
                PROJECT.package / "report/audit_table.md",
                *PROJECT.method_files(PROJECT.methods()),
            ],
        ),
    message:
        "Table of audits"
    shell:
        script("audit_table", "--results RESULTS --out {output.csv:q}")
