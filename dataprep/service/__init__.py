"""The service: jobs that make new versions of datasets by themselves, and a page to see it all.

    jobs, job   what a job is: one YAML of the jobs folder
    places      where its words lead, and which of them lead too far
    schedule    when it is due
    running     one run of it: what is new, a part of that, a version with it
    records     what runs say of themselves: files in the dataset's folder
    notices     who is told how a run ended
    oneshot     what is due, one job after the other
    summaries   jobs and their runs in short, for the command line
    rendering   entries for systemd, cron, Slurm and Kubernetes, which run what is due
    daemon      the same without any of them
    state       what there is to see
    web         pages and API

The jobs folder is configuration, and only `jobs.add_job` writes to it; all state are files in the folders of datasets,
so that any number of machines may run and show the same jobs.
"""
