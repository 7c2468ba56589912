-- Reads up to p_quantity messages from the queues, in their order, and claims what can be claimed at
-- once. One row per message that needs work: the verdicts of claim(), or for any message that is
-- not a step's 'job', or 'withdrawn' when its batch was: it is not to run. Nothing read: one row
-- 'idle' with the seconds until the next message becomes visible (one that was, and was not read,
-- another transaction has locked) and until the timer has one to send. No row at all: what was read
-- needed nothing; ask again.
-- A locked run is not waited for: its message keeps its place and is claimed by itself.
CREATE FUNCTION {schema}.take(
    p_queues text[], p_quantity integer, p_visibility integer, p_unguarded text[],
    p_worker text, p_revision text)
RETURNS TABLE (
    verdict text, queue text, message_id bigint, read_count integer, body text, workflow_id text,
    workflow_class text, subject_type text, subject_id text, arguments text,
    step_id bigint, step_name text, attempt integer, trace text,
    next_visible double precision, next_send double precision)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_reader text;
    v_visible timestamptz;
    v_left integer := p_quantity;
    v_began timestamptz := clock_timestamp();
    m record;
BEGIN
    FOREACH v_queue IN ARRAY p_queues LOOP
        v_reader := CASE WHEN v_left = 1 THEN format('{schema}.%I($2)', 'read_' || v_queue)
                         ELSE 'pgmq.read($1, $2, $3)' END;
        FOR m IN EXECUTE 'SELECT r.msg_id, r.read_ct, r.message, r.message ->> ''workflow_id'' AS workflow_id
                            FROM ' || v_reader || ' AS r'
                   USING v_queue, p_visibility, v_left LOOP
            v_left := v_left - 1;
            queue := v_queue;
            message_id := m.msg_id;
            read_count := m.read_ct;
            IF m.workflow_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN
                workflow_id := m.workflow_id;
                SELECT c.verdict, c.workflow_class, c.subject_type, c.subject_id, c.arguments,
                       c.step_id, c.step_name, c.attempt, c.trace
                  INTO verdict, workflow_class, subject_type, subject_id, arguments, step_id, step_name, attempt,
                       trace
                  FROM {schema}.claim(m.workflow_id::uuid, v_queue, m.msg_id, m.read_ct, false, p_unguarded,
                                      p_worker, p_revision) c;
                IF verdict IS NOT NULL THEN
                    RETURN NEXT;
                END IF;
            ELSE
                verdict := CASE WHEN m.message ? 'batch' AND {schema}.is_withdrawn(m.message)
                                THEN 'withdrawn' ELSE 'job' END;
                body := m.message::text;
                RETURN NEXT;
            END IF;
            verdict := NULL; body := NULL; workflow_id := NULL; workflow_class := NULL;
        END LOOP;
        EXIT WHEN v_left <= 0;
    END LOOP;
    IF v_left < p_quantity THEN
        RETURN;
    END IF;
    FOREACH v_queue IN ARRAY p_queues LOOP
        EXECUTE format('SELECT least($1, min(vt)) FROM pgmq.%I WHERE vt > $2',
                       pgmq.format_table_name(v_queue, 'q'))
           INTO v_visible USING v_visible, v_began;
    END LOOP;
    RETURN QUERY SELECT 'idle', NULL, NULL::bigint, NULL::integer, NULL, NULL,
                        NULL, NULL, NULL, NULL, NULL::bigint, NULL, NULL::integer, NULL,
                        extract(epoch FROM v_visible - clock_timestamp())::double precision,
                        (SELECT extract(epoch FROM min(send_at) - clock_timestamp())::double precision
                           FROM {schema}.workflow_steps WHERE send_at IS NOT NULL);
END $$;
