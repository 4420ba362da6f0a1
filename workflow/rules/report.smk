# results/report.html: one file with the questions, the verdicts, the tables, the figures and how to make them again.
import shlex


rule report:
    input:
        [f"{RESULTS}/tables/{study}.csv" for study in SETTINGS.studies],
        [figure for study in SETTINGS.studies for figure in PROJECT.figures(study)],
        f"{RESULTS}/ledger.html",
        f"{RESULTS}/tables/audit.csv",
        PROJECT.all_audits(),
    output:
        f"{RESULTS}/report.html",
    log:
        "logs/report.log",
    localrule: True
    conda:
        "../../envs/pflpipe.yaml"
    params:
        studies=list(SETTINGS.studies),
        results=lambda wc: RESULTS,
        # How this snakemake was called; as a function of the input it is not compared with the last time.
        settings=lambda wc, input: shlex.join(
            project.settings_words(
                workflow.overwrite_configfiles, workflow.config_settings.config_args
            )
        ),
        code=ask(
            lambda wc: PROJECT.code(
                "report", sorted((ROOT / "workflow/report").glob("*.html"))
            )
        ),
    message:
        "Report"
    shell:
        script(
            "report",
            "--studies {params.studies} --results {params.results:q} --settings={params.settings:q}"
            ' --root "$PFLPIPE_ROOT" --template "$PFLPIPE_ROOT/workflow/report/report.html" --out {output:q}',
        )
