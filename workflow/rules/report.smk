# results/report.html: one file with the tables, the figures and how they were made, by Snakemake's own reporter. The directory
# is locked by the snakemake that runs this rule, hence --nolock.
rule report:
    input:
        [f"{RESULTS}/tables/{study}.csv" for study in SETTINGS.studies],
        [figure for study in SETTINGS.studies for figure in figures_of(study)],
        f"{RESULTS}/ledger.html",
    output:
        f"{RESULTS}/report.html",
    log:
        "logs/report.log",
    conda:
        "../../envs/pflpipe.yaml"
    params:
        snakefile=ROOT / "Snakefile",
        settings=[
            f"data_dir={DATA}",
            f"results_dir={RESULTS}",
            f"studies={canonical_json(SETTINGS.studies)}",
            f"datasets={canonical_json({name: str(file) for name, file in SETTINGS.datasets.items()})}",
        ],
    message:
        "Report"
    shell:
        "snakemake --snakefile {params.snakefile:q} --cores 1 --nolock --config {params.settings:q} --report {output:q}"
        " -- {input:q} > {log} 2>&1"
