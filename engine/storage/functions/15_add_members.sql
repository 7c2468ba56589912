-- Adds jobs to a batch that is open and sends their messages; false, adding nothing, when it finished
-- or was withdrawn. p_members is an array of {job, queue, body, wait, not_before}.
-- Members are dealt out to new counters, up to 16 a call, so that those that end at once seldom meet on
-- one. No counter that exists is touched: an adder locks the batch alone, which cannot finish before
-- the adder's commit, and then has more counters open. Lock order: batch.
CREATE FUNCTION {schema}.add_members(p_batch_id uuid, p_members jsonb)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_members integer := jsonb_array_length(p_members);
    v_counters integer := least(16, v_members);
    v_before integer;
    v_first_counter integer;
    s record;
BEGIN
    UPDATE {schema}.batches b
       SET total_jobs = b.total_jobs + v_members, counters = b.counters + v_counters
     WHERE b.batch_id = p_batch_id AND b.finished_at IS NULL AND b.withdrawn_at IS NULL
    RETURNING b.total_jobs - v_members, b.counters - v_counters INTO v_before, v_first_counter;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO {schema}.batch_counters (batch_id, counter, open, completed, discarded, dead_lettered)
    SELECT p_batch_id, v_first_counter + c, (v_members - 1 - c) / v_counters + 1, 0, 0, 0
      FROM generate_series(0, v_counters - 1) AS c;
    INSERT INTO {schema}.batch_jobs (batch_id, number, counter, job, queue, status)
    SELECT p_batch_id, v_before + m.place, v_first_counter + (m.place - 1) % v_counters, m.job, m.queue, 'open'
      FROM ROWS FROM (jsonb_to_recordset(p_members) AS (job text, queue text))
           WITH ORDINALITY AS m (job, queue, place);
    FOR s IN SELECT m.queue, greatest(v_now + make_interval(secs => m.wait), m.not_before) AS due_at,
                    array_agg(m.body::jsonb
                              || jsonb_build_object('batch', jsonb_build_array(p_batch_id, v_before + m.place))
                              ORDER BY m.place) AS messages
               FROM ROWS FROM (jsonb_to_recordset(p_members)
                               AS (queue text, body text, wait double precision, not_before timestamptz))
                    WITH ORDINALITY AS m (queue, body, wait, not_before, place)
              GROUP BY 1, 2 ORDER BY min(m.place) LOOP
        PERFORM pgmq.send_batch(s.queue, s.messages, NULL::jsonb[], s.due_at);
        PERFORM pg_notify('{channel}', s.queue);
    END LOOP;
    RETURN true;
END $$;
