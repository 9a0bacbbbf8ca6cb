"""OpenLineage events and the client that sends them. This module alone imports openlineage-python."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import attr
import pyspark
from openlineage.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    DatasetFacet,
    JobFacet,
    OutputDatasetFacet,
    RunFacet,
    dataset_version_dataset,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    parent_run,
    processing_engine_run,
    schema_dataset,
    symlinks_dataset,
)

from writer_jobs.lineage.records import Connection, DatasetName, OutputRecord, ParentRun, RunRecord, SourceRecord

_PACKAGE = "delta-sluice"
try:
    _VERSION: str | None = version(_PACKAGE)
except PackageNotFoundError:
    # The zip for a cluster has the modules only.
    _VERSION = None
_PRODUCER = f"pkg:pypi/{_PACKAGE}" + ("" if _VERSION is None else f"@{_VERSION}")


@attr.define(kw_only=True)
class WriteRunFacet(RunFacet):
    """The facet ``sluice_write`` of a write; docs/how-to/lineage.md describes its fields."""

    table: str
    operation: str
    unknownSources: int = 0  # noqa: N815
    alreadyCommitted: bool | None = None  # noqa: N815
    commitId: str | None = None  # noqa: N815
    holdId: str | None = None  # noqa: N815
    token: int | None = None
    transaction: dict[str, Any] | None = None
    metrics: dict[str, str] | None = None


def connection() -> Connection:
    """Return a connection by the library's own configuration: its variables, or its file."""
    client = OpenLineageClient()
    return Connection(send=lambda record: client.emit(event_of(record)), close=client.close)


def event_of(record: RunRecord) -> RunEvent:
    """Return the event of a record."""
    return RunEvent(
        eventTime=datetime.fromtimestamp(record.at, UTC).isoformat(timespec="milliseconds"),
        eventType=RunState(record.state),
        run=Run(record.run.run_id, _run_facets(record)),
        job=Job(record.run.namespace, record.run.job, _job_facets(record)),
        inputs=[_input(source) for source in record.sources],
        outputs=[_output(output) for output in record.outputs],
        producer=_PRODUCER,
    )


def _run_facets(record: RunRecord) -> dict[str, RunFacet]:
    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=pyspark.__version__, name="spark", openlineageAdapterVersion=_VERSION, producer=_PRODUCER
        )
    }
    if record.parent is not None:
        facets["parent"] = _parent(record.parent)
    if record.error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=record.error, programmingLanguage="python", producer=_PRODUCER
        )
    if record.write is not None:
        facets["sluice_write"] = WriteRunFacet(**record.write, producer=_PRODUCER)
    return facets


def _parent(parent: ParentRun) -> parent_run.ParentRunFacet:
    run, root = parent.run, parent.root
    return parent_run.ParentRunFacet(
        run=parent_run.Run(run.run_id),
        job=parent_run.Job(run.namespace, run.job),
        root=parent_run.Root(parent_run.RootRun(root.run_id), parent_run.RootJob(root.namespace, root.job)),
        producer=_PRODUCER,
    )


def _job_facets(record: RunRecord) -> dict[str, JobFacet]:
    job_type = job_type_job.JobTypeJobFacet(
        processingType="STREAMING" if record.is_stream else "BATCH",
        integration="SLUICE",
        jobType=record.job_type,
        producer=_PRODUCER,
    )
    return {"jobType": job_type}


def _input(source: SourceRecord) -> InputDataset:
    return InputDataset(source.name.namespace, source.name.name, facets=_dataset_facets(source.symlink, source.version))


def _output(output: OutputRecord) -> OutputDataset:
    facets = _dataset_facets(output.symlink, output.version)
    if output.columns:
        fields = [schema_dataset.SchemaDatasetFacetFields(name, data_type) for name, data_type in output.columns]
        facets["schema"] = schema_dataset.SchemaDatasetFacet(fields, producer=_PRODUCER)
    output_facets: dict[str, OutputDatasetFacet] = {}
    if output.statistics:
        output_facets["outputStatistics"] = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            **output.statistics, producer=_PRODUCER
        )
    return OutputDataset(output.name.namespace, output.name.name, facets=facets, outputFacets=output_facets)


def _dataset_facets(symlink: DatasetName | None, table_version: int | None) -> dict[str, DatasetFacet]:
    facets: dict[str, DatasetFacet] = {}
    if table_version is not None:
        facets["version"] = dataset_version_dataset.DatasetVersionDatasetFacet(str(table_version), producer=_PRODUCER)
    if symlink is not None:
        identifier = symlinks_dataset.Identifier(symlink.namespace, symlink.name, "TABLE")
        facets["symlinks"] = symlinks_dataset.SymlinksDatasetFacet([identifier], producer=_PRODUCER)
    return facets
