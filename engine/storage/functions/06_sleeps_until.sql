-- The moment until which a run sleeps whose next step is due at p_at: NULL when that is at most a minute away.
-- While it sleeps there is no message: the queue stays short, and the timer sends one in time.
CREATE FUNCTION {schema}.sleeps_until(p_at timestamptz, p_now timestamptz)
RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN p_at > p_now + interval '1 minute' THEN p_at END
$$;
