-- Written by the store of commit a7abe4f, the first with schema 0002.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0002');
CREATE TABLE artifact_data (
	trajectory_id TEXT NOT NULL, 
	data JSON NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_artifact_data PRIMARY KEY (trajectory_id), 
	CONSTRAINT fk_artifact_data_trajectory_id FOREIGN KEY(trajectory_id) REFERENCES trajectories (id)
);
INSERT INTO "artifact_data" VALUES('old0','{"state": [1, null, {"x": "ü"}]}',NULL);
INSERT INTO "artifact_data" VALUES('old1','{"state": [1, null, {"x": "ü"}]}',NULL);
CREATE TABLE artifact_files (
	trajectory_id TEXT NOT NULL, 
	position INTEGER NOT NULL, 
	name TEXT NOT NULL, 
	content BLOB NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_artifact_files PRIMARY KEY (trajectory_id, position), 
	CONSTRAINT fk_artifact_files_trajectory_id FOREIGN KEY(trajectory_id) REFERENCES trajectories (id)
);
INSERT INTO "artifact_files" VALUES('old0',0,'a.patch',X'00FF',NULL);
INSERT INTO "artifact_files" VALUES('old0',1,'b',X'',NULL);
INSERT INTO "artifact_files" VALUES('old1',0,'a.patch',X'00FF',NULL);
INSERT INTO "artifact_files" VALUES('old1',1,'b',X'',NULL);
CREATE TABLE claims (
	id INTEGER NOT NULL, 
	run_id TEXT NOT NULL, 
	group_id TEXT NOT NULL, 
	step_id INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	claimed_at DOUBLE NOT NULL, 
	CONSTRAINT pk_claims PRIMARY KEY (id), 
	CONSTRAINT fk_claims_group_id FOREIGN KEY(group_id) REFERENCES groups (id), 
	CONSTRAINT fk_claims_run_id_step_id FOREIGN KEY(run_id, step_id) REFERENCES steps (run_id, id), 
	CONSTRAINT fk_claims_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "claims" VALUES(1,'45f05ce53436','673b954c341d5dc7',0,'consumed',1.79600878307994961738e+09);
CREATE TABLE engine_calls (
	trajectory_id TEXT NOT NULL, 
	turn INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	span_start INTEGER NOT NULL, 
	span_end INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	request_id TEXT NOT NULL, 
	engine TEXT NOT NULL, 
	finish_reason TEXT NOT NULL, 
	sampling JSON NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_engine_calls PRIMARY KEY (trajectory_id, turn, position), 
	CONSTRAINT fk_engine_calls_trajectory_id_turn FOREIGN KEY(trajectory_id, turn) REFERENCES turns (trajectory_id, turn)
);
INSERT INTO "engine_calls" VALUES('old0',0,0,0,2,0,'r0','e0','stop','{"temperature": 1.0}',NULL);
INSERT INTO "engine_calls" VALUES('old0',1,0,0,3,0,'r1','e0','stop','{"temperature": 1.0}',NULL);
INSERT INTO "engine_calls" VALUES('old1',0,0,0,2,0,'r0','e0','stop','{"temperature": 1.0}',NULL);
INSERT INTO "engine_calls" VALUES('old1',1,0,0,3,0,'r1','e0','stop','{"temperature": 1.0}',NULL);
CREATE TABLE grades (
	id INTEGER NOT NULL, 
	trajectory_id TEXT NOT NULL, 
	reward DOUBLE, 
	unmeasured TEXT, 
	parts JSON NOT NULL, 
	turn_rewards JSON, 
	grader TEXT NOT NULL, 
	grader_version TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	raw BLOB, output TEXT, 
	CONSTRAINT pk_grades PRIMARY KEY (id), 
	CONSTRAINT ck_grades_measured_or_reason CHECK ((reward IS NULL) <> (unmeasured IS NULL)), 
	CONSTRAINT fk_grades_trajectory_id FOREIGN KEY(trajectory_id) REFERENCES trajectories (id)
);
INSERT INTO "grades" VALUES(1,'old0',0.0,NULL,'{}',NULL,'g','1',1.79600878304920268061e+09,NULL,NULL);
INSERT INTO "grades" VALUES(2,'old1',1.0,NULL,'{}',NULL,'g','1',1.79600878305769968033e+09,NULL,NULL);
INSERT INTO "grades" VALUES(3,'fork',NULL,'no box','{"a": null}',NULL,'','',1.79600878309022879602e+09,X'7B227061727473223A207B2261223A204E614E7D7D',NULL);
CREATE TABLE groups (
	id TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	task TEXT NOT NULL, 
	purpose TEXT NOT NULL, 
	ordinal INTEGER NOT NULL, 
	size INTEGER NOT NULL, 
	state TEXT NOT NULL, 
	dropped_reason TEXT, 
	owner TEXT, 
	lease_generation INTEGER NOT NULL, 
	lease_until DOUBLE, 
	reissue INTEGER NOT NULL, 
	version INTEGER, 
	planned_at DOUBLE NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_groups PRIMARY KEY (id), 
	CONSTRAINT fk_groups_run_id_version FOREIGN KEY(run_id, version) REFERENCES versions (run_id, id), 
	CONSTRAINT fk_groups_run_id FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT fk_groups_task FOREIGN KEY(task) REFERENCES tasks (identity)
);
INSERT INTO "groups" VALUES('673b954c341d5dc7','45f05ce53436','d3552e4e9427451b535b98dba0f577b6','train',0,2,'complete',NULL,NULL,1,NULL,0,0,1.79600878299023866656e+09,NULL);
INSERT INTO "groups" VALUES('c246bff112a05f32','45f05ce53436','d3552e4e9427451b535b98dba0f577b6','train',1,2,'dropped','why not',NULL,0,NULL,0,0,1.79600878309086108204e+09,NULL);
INSERT INTO "groups" VALUES('d9f27cc21ab38365','45f05ce53436','d3552e4e9427451b535b98dba0f577b6','train',2,2,'planned',NULL,NULL,0,NULL,0,0,1.79600878309618616109e+09,NULL);
CREATE TABLE runs (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	status TEXT NOT NULL, 
	config JSON NOT NULL, 
	packages JSON NOT NULL, 
	git_commit TEXT, 
	seed BIGINT NOT NULL, 
	folder TEXT NOT NULL, 
	started_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	raw BLOB, 
	CONSTRAINT pk_runs PRIMARY KEY (id)
);
INSERT INTO "runs" VALUES('45f05ce53436','toy run','completed','{"env": {"name": "toy"}}','{}',NULL,3,'',1.79600878298209142686e+09,1.7960087830966792107e+09,NULL);
CREATE TABLE step_rows (
	run_id TEXT NOT NULL, 
	step_id INTEGER NOT NULL, 
	batch INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	trajectory_id TEXT NOT NULL, 
	end_turn INTEGER NOT NULL, 
	grade_id INTEGER, 
	advantage DOUBLE, 
	weights JSON NOT NULL, 
	ratio_mean DOUBLE, 
	ratio_max DOUBLE, 
	clip_share DOUBLE, 
	raw BLOB, 
	CONSTRAINT pk_step_rows PRIMARY KEY (run_id, step_id, batch, position), 
	CONSTRAINT fk_step_rows_grade_id FOREIGN KEY(grade_id) REFERENCES grades (id), 
	CONSTRAINT fk_step_rows_run_id_step_id FOREIGN KEY(run_id, step_id) REFERENCES steps (run_id, id), 
	CONSTRAINT fk_step_rows_trajectory_id_end_turn FOREIGN KEY(trajectory_id, end_turn) REFERENCES turns (trajectory_id, turn)
);
INSERT INTO "step_rows" VALUES('45f05ce53436',0,0,0,'old0',1,1,0.5,'[[3, 5, 0.0, "stale"]]',1.0,1.5,0.25,NULL);
INSERT INTO "step_rows" VALUES('45f05ce53436',0,0,1,'old1',1,2,0.5,'[[3, 5, 0.0, "stale"]]',1.0,1.5,0.25,NULL);
CREATE TABLE steps (
	run_id TEXT NOT NULL, 
	id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	version_before INTEGER NOT NULL, 
	version_after INTEGER, 
	state TEXT NOT NULL, 
	abandoned BOOLEAN NOT NULL, 
	metrics JSON, 
	started_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	raw BLOB, 
	CONSTRAINT pk_steps PRIMARY KEY (run_id, id), 
	CONSTRAINT fk_steps_run_id_version_after FOREIGN KEY(run_id, version_after) REFERENCES versions (run_id, id), 
	CONSTRAINT fk_steps_run_id_version_before FOREIGN KEY(run_id, version_before) REFERENCES versions (run_id, id), 
	CONSTRAINT fk_steps_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "steps" VALUES('45f05ce53436',0,0,0,1,'recorded',0,'{"loss": null}',1.79600878306800794599e+09,1.79600878308586192136e+09,X'7B226D657472696373223A207B226C6F7373223A204E614E7D7D');
CREATE TABLE tasks (
	identity TEXT NOT NULL, 
	"key" TEXT NOT NULL, 
	env TEXT NOT NULL, 
	id TEXT NOT NULL, 
	split TEXT NOT NULL, 
	messages JSON NOT NULL, 
	data JSON NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_tasks PRIMARY KEY (identity)
);
INSERT INTO "tasks" VALUES('d3552e4e9427451b535b98dba0f577b6','799dc00a2ea93d25ca2cd142c0876a49','toy','t0','train','[{"role": "user", "content": "1+1?", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}]','{"answer": 2}',NULL);
CREATE TABLE tool_calls (
	trajectory_id TEXT NOT NULL, 
	turn INTEGER NOT NULL, 
	position INTEGER NOT NULL, 
	call_id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	raw_arguments TEXT NOT NULL, 
	arguments JSON, 
	status TEXT NOT NULL, 
	span_start INTEGER NOT NULL, 
	span_end INTEGER NOT NULL, 
	error TEXT, 
	result TEXT, 
	seconds DOUBLE NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_tool_calls PRIMARY KEY (trajectory_id, turn, position), 
	CONSTRAINT fk_tool_calls_trajectory_id_turn FOREIGN KEY(trajectory_id, turn) REFERENCES turns (trajectory_id, turn)
);
INSERT INTO "tool_calls" VALUES('old0',0,0,'c0','add','{"a": 1','{"k�": [1.5, null]}','ok',0,2,NULL,'before�after',0.0,X'7B22617267756D656E7473223A207B226B5C7530303030223A205B312E352C206E756C6C5D7D2C2022726573756C74223A20226265666F72655C75303030306166746572227D');
INSERT INTO "tool_calls" VALUES('old1',0,0,'c0','add','{"a": 1','{"k�": [1.5, null]}','ok',0,2,NULL,'before�after',0.0,X'7B22617267756D656E7473223A207B226B5C7530303030223A205B312E352C206E756C6C5D7D2C2022726573756C74223A20226265666F72655C75303030306166746572227D');
CREATE TABLE trajectories (
	id TEXT NOT NULL, 
	run_id TEXT NOT NULL, 
	task TEXT NOT NULL, 
	group_id TEXT, 
	lease_generation INTEGER NOT NULL, 
	sample INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	reissue INTEGER NOT NULL, 
	env_seed BIGINT NOT NULL, 
	sampling_seed BIGINT NOT NULL, 
	env_version TEXT NOT NULL, 
	renderer_mode TEXT NOT NULL, 
	template_hash TEXT NOT NULL, 
	stop_reason TEXT, 
	error TEXT, 
	forked_from_trajectory TEXT, 
	forked_from_turn INTEGER, 
	started_at DOUBLE NOT NULL, 
	finished_at DOUBLE, 
	num_turns INTEGER NOT NULL, 
	num_sampled INTEGER NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_trajectories PRIMARY KEY (id), 
	CONSTRAINT fk_trajectories_forked_from_trajectory FOREIGN KEY(forked_from_trajectory) REFERENCES trajectories (id), 
	CONSTRAINT fk_trajectories_group_id FOREIGN KEY(group_id) REFERENCES groups (id), 
	CONSTRAINT fk_trajectories_run_id FOREIGN KEY(run_id) REFERENCES runs (id), 
	CONSTRAINT fk_trajectories_task FOREIGN KEY(task) REFERENCES tasks (identity), 
	CONSTRAINT uq_trajectories_group_id_sample_reissue_attempt UNIQUE (group_id, sample, reissue, attempt)
);
INSERT INTO "trajectories" VALUES('old0','45f05ce53436','d3552e4e9427451b535b98dba0f577b6','673b954c341d5dc7',1,0,0,0,4611686018427387904,0,'','append','','completed',NULL,NULL,NULL,10.0,20.0,2,5,NULL);
INSERT INTO "trajectories" VALUES('old1','45f05ce53436','d3552e4e9427451b535b98dba0f577b6','673b954c341d5dc7',1,1,0,0,4611686018427387904,0,'','append','','completed',NULL,NULL,NULL,10.0,20.0,2,5,NULL);
INSERT INTO "trajectories" VALUES('fork','45f05ce53436','d3552e4e9427451b535b98dba0f577b6',NULL,0,0,0,0,0,0,'','append','','completed','x�','old0',1,10.0,20.0,1,1,X'7B226572726F72223A2022785C7530303030227D');
CREATE TABLE turns (
	trajectory_id TEXT NOT NULL, 
	turn INTEGER NOT NULL, 
	parent INTEGER, 
	keep INTEGER NOT NULL, 
	agent TEXT NOT NULL, 
	trained BOOLEAN NOT NULL, 
	sampler TEXT NOT NULL, 
	reward DOUBLE, 
	text TEXT NOT NULL, 
	message JSON NOT NULL, 
	prompt_messages JSON NOT NULL, 
	prompt_ids BLOB NOT NULL, 
	sampled_ids BLOB NOT NULL, 
	logprobs BLOB NOT NULL, 
	timings JSON NOT NULL, 
	started_at DOUBLE NOT NULL, 
	raw BLOB, 
	CONSTRAINT pk_turns PRIMARY KEY (trajectory_id, turn), 
	CONSTRAINT fk_turns_trajectory_id_parent FOREIGN KEY(trajectory_id, parent) REFERENCES turns (trajectory_id, turn), 
	CONSTRAINT fk_turns_trajectory_id FOREIGN KEY(trajectory_id) REFERENCES trajectories (id)
);
INSERT INTO "turns" VALUES('old0',0,NULL,0,'main',1,'engine',0.0,'2','{"role": "assistant", "content": "2", "reasoning": "hm", "tool_calls": [], "tool_call_id": null, "name": null}','[{"role": "user", "content": "1+1?", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}]',X'010000000200000003000000',X'0700000008000000',X'000000BF000000BF','{"sample": 0.25}',12.5,NULL);
INSERT INTO "turns" VALUES('old0',1,0,5,'main',1,'engine',0.5,'grüße� �','{"role": "assistant", "content": "grüße� �", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}','[{"role": "user", "content": "1+1?", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}]',X'010000000200000003000000',X'090000000A0000000B000000',X'000000BF000000BF000000BF','{"sample": 0.25}',12.5,X'7B2274657874223A20226772C3BCC39F655C753030303020EDB3BF222C20226D657373616765223A207B22726F6C65223A2022617373697374616E74222C2022636F6E74656E74223A20226772C3BCC39F655C753030303020EDB3BF222C2022726561736F6E696E67223A206E756C6C2C2022746F6F6C5F63616C6C73223A205B5D2C2022746F6F6C5F63616C6C5F6964223A206E756C6C2C20226E616D65223A206E756C6C7D7D');
INSERT INTO "turns" VALUES('old1',0,NULL,0,'main',1,'engine',0.0,'2','{"role": "assistant", "content": "2", "reasoning": "hm", "tool_calls": [], "tool_call_id": null, "name": null}','[{"role": "user", "content": "1+1?", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}]',X'010000000200000003000000',X'0700000008000000',X'000000BF000000BF','{"sample": 0.25}',12.5,NULL);
INSERT INTO "turns" VALUES('old1',1,0,5,'main',1,'engine',0.5,'grüße� �','{"role": "assistant", "content": "grüße� �", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}','[{"role": "user", "content": "1+1?", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}]',X'010000000200000003000000',X'090000000A0000000B000000',X'000000BF000000BF000000BF','{"sample": 0.25}',12.5,X'7B2274657874223A20226772C3BCC39F655C753030303020EDB3BF222C20226D657373616765223A207B22726F6C65223A2022617373697374616E74222C2022636F6E74656E74223A20226772C3BCC39F655C753030303020EDB3BF222C2022726561736F6E696E67223A206E756C6C2C2022746F6F6C5F63616C6C73223A205B5D2C2022746F6F6C5F63616C6C5F6964223A206E756C6C2C20226E616D65223A206E756C6C7D7D');
INSERT INTO "turns" VALUES('fork',0,NULL,0,'main',1,'human',0.0,'2','{"role": "assistant", "content": "2", "reasoning": "hm", "tool_calls": [], "tool_call_id": null, "name": null}','[{"role": "user", "content": "1+1?", "reasoning": null, "tool_calls": [], "tool_call_id": null, "name": null}]',X'010000000200000003000000',X'05000000',X'000080BF','{"sample": 0.25}',12.5,NULL);
CREATE TABLE versions (
	run_id TEXT NOT NULL, 
	id INTEGER NOT NULL, 
	ordinal INTEGER NOT NULL, 
	parent_run_id TEXT, 
	parent_version INTEGER, 
	step_id INTEGER, 
	weights_hash TEXT NOT NULL, 
	abandoned BOOLEAN NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_versions PRIMARY KEY (run_id, id), 
	CONSTRAINT fk_versions_parent_run_id_parent_version FOREIGN KEY(parent_run_id, parent_version) REFERENCES versions (run_id, id), 
	CONSTRAINT fk_versions_run_id FOREIGN KEY(run_id) REFERENCES runs (id)
);
INSERT INTO "versions" VALUES('45f05ce53436',0,0,NULL,NULL,NULL,'w0',0,1.79600878298934626573e+09);
INSERT INTO "versions" VALUES('45f05ce53436',1,1,'45f05ce53436',0,0,'w1',0,1.79600878308241915706e+09);
CREATE INDEX ix_runs_name ON runs (name);
CREATE INDEX ix_tasks_env_split ON tasks (env, split);
CREATE INDEX ix_tasks_key ON tasks ("key");
CREATE INDEX ix_groups_run_id_state_purpose_ordinal ON groups (run_id, state, purpose, ordinal);
CREATE INDEX ix_claims_run_id_step_id ON claims (run_id, step_id);
CREATE UNIQUE INDEX uq_claims_live ON claims (group_id, run_id) WHERE state <> 'released';
CREATE INDEX ix_trajectories_run_id_stop_reason ON trajectories (run_id, stop_reason);
CREATE INDEX ix_trajectories_started_at ON trajectories (started_at);
CREATE INDEX ix_trajectories_task ON trajectories (task);
CREATE INDEX ix_tool_calls_name_status ON tool_calls (name, status);
CREATE INDEX ix_grades_trajectory_id ON grades (trajectory_id);
CREATE INDEX ix_step_rows_trajectory_id ON step_rows (trajectory_id);
COMMIT;
