# results/report.html: one file with questions, verdicts, tables, figures, and how to repeat them.


rule report:
    input:
        [f"{RESULTS}/tables/{study}.csv" for study in SETTINGS.studies],
        [figure for study in SETTINGS.studies for figure in PROJECT.figures(study)],
        ask(lambda wc: PROJECT.audits_of_rows()),
    output:
        f"{RESULTS}/report.html",
    log:
        "logs/report.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        studies=list(SETTINGS.studies),
        # A function of the input: Snakemake does not compare it with the last run.
        settings=lambda wc, input: shlex.join(
            project.settings_words(config, Path("config.yaml"))
        ),
        code=code(
            "report",
            lambda wc: [
                *sorted((ROOT / "workflow/report").iterdir()),
                *PROJECT.style_files(),
            ],
        ),
    message:
        "Report"
    shell:
        script(
            "report",
            "--studies {params.studies} --results RESULTS --settings={params.settings:q}"
            ' --root "$PFLPIPE_ROOT" --template "$PFLPIPE_ROOT/workflow/report/report.html" --out {output:q}',
        )
