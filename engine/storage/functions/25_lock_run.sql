-- Locks a run's row and returns it; gives up after ten seconds (lock_not_available), so that nothing
-- waits forever for a transaction that a host left open.
CREATE FUNCTION {schema}.lock_run(p_workflow_id uuid)
RETURNS SETOF {schema}.workflows LANGUAGE plpgsql SET lock_timeout = '10s' AS $$
BEGIN
    RETURN QUERY SELECT * FROM {schema}.workflows w WHERE w.workflow_id = p_workflow_id FOR UPDATE;
END $$;
